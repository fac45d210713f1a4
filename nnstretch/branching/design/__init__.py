"""Designs: the structure of a branched network as data, what it costs, and whether it fits a network."""
