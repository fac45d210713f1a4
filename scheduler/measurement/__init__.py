"""Profiling: what layers cost on this machine, measured once and kept (SoftNeuro, section III-C)."""
