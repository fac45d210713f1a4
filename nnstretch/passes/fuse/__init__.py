"""Canonical operators into layers: affine functions, sums, activations, attention, parallel convolutions."""
