"""Executes plans: sessions, streams, adaptive sessions, timelines."""
