"""Data sets by name: one module each, with a function `load` (see `SOURCES` of the package above)."""
