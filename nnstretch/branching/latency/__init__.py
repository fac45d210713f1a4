"""Predicted latencies of branches, and the interface of latency predictors."""
