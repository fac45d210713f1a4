"""Streams: several inputs in flight, for throughput instead of latency."""
