"""Reads and writes the pycls YAML files in which NN-Stretch's authors publish their networks."""
