"""Benchmarks: engines side by side in processes of their own, and the ablation of a branching."""
