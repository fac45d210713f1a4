"""Remote devices: processors known by description only."""
