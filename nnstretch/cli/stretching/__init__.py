"""The steps of `nnstretch stretch`."""
