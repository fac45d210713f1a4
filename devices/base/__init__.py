"""Contracts and descriptions that all processors share."""
