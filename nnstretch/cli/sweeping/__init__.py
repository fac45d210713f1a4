"""What `nnstretch sweep` does."""
