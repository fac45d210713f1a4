"""Optuna studies as documents: any study can be read, whoever made it."""
