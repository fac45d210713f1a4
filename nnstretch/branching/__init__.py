"""Branching: gives a trained network parallel, scaled branches with inherited weights (NN-Stretch)."""
