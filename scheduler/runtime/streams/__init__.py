"""Streams: several inputs on their way at a time, for throughput instead of latency."""
