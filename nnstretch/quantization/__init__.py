"""Quantisation of float32 networks."""
