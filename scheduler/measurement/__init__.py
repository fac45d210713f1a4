"""Measurement of layers on this machine, each once, and the store that keeps them (SoftNeuro, section III-C)."""
