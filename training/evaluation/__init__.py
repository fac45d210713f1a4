"""Accuracies of networks, their intervals, and comparisons of two networks."""
