"""What stands behind MODEL and NETWORK of a command line."""
