"""Selectors of the literature, for comparison."""
