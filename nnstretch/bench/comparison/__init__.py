"""Inference engines measured side by side."""
