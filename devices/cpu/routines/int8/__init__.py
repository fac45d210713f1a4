"""Routines for int8 layers: integers in and out, each tensor with a scale and a zero point of its own."""
