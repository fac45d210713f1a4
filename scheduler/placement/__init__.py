"""Automatic placement: which queue computes what, and in which order, for networks with branches of their own."""
