"""Tuning for the processors of a target: measurements there by the runner, and plans from what the store has of them."""
