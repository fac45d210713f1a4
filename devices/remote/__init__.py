"""Remote or profiled devices: processors known by description only."""
