"""What `nnstretch run` is asked to do."""
