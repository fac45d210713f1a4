"""From a torch module to a chain of blocks."""
