"""Branched networks in pycls files, as NN-Stretch's authors publish them."""
