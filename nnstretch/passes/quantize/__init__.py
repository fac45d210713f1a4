"""Passes that turn QDQ patterns into int8 layers."""
