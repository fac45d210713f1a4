"""Comparison of the latency of two commits. `scripts/bench_regression.py` is its command line."""
