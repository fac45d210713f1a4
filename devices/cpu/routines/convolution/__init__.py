"""Convolutions and dense layers in floats."""
