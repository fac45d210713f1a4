"""Channel groups, scaling, and the selection of channels."""
