"""Python binding of the native engine."""
