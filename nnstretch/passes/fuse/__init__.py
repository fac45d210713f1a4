"""Passes that fuse operators into layers."""
