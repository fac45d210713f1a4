"""Processors that are not here, described by a profile: for planning, searching and simulating, not for running."""
