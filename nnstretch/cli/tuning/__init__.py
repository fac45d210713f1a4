"""What `nnstretch tune` does beside choosing."""
