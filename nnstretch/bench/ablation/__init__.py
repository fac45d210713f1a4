"""The equal-MACs comparison of a branched network."""
