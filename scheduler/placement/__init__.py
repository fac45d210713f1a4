"""Automatic placement: which lane computes what, and in which order, for networks with branches of their own."""
