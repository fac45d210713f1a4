"""Designs as data: choices, cost, validation, files."""
