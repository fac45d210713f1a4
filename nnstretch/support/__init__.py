"""Helpers without knowledge of models: settings and files, child processes, durations."""
