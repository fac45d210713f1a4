"""Dependency groups of channels, width scaling, and which channels a branch keeps."""
