"""Search of routine parameters."""
