"""Branching: networks of parallel branches fitted to processors (NN-Stretch)."""
