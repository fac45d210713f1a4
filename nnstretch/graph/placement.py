"""Which processor a design has given a node to."""

PLACEMENT_KEY = "nnstretch.processor"
"""Metadata of a node that a design has given to a processor: its index in the list of processors."""
