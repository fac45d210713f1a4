"""CPU processors: groups of cores that run the native engine's kernels."""
