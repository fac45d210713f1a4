"""What `nnstretch bench` does on this machine."""
