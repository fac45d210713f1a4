"""Targets: machines that measure and run."""
