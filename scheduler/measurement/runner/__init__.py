"""Runs candidates in a process of their own and measures them."""
