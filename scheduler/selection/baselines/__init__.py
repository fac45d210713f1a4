"""Selectors from the literature, for comparison. Only the table of selectors refers to them."""
