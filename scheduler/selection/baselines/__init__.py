"""Selectors of the literature, for comparison: nothing in the product imports them but the list of selectors."""
