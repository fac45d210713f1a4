"""Benchmarks: engines side by side in processes of their own, and the proof of a branching."""
