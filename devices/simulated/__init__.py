"""Simulated processors, described by a profile: for planning, search and simulation, not for execution."""
