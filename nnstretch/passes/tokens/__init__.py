"""Channels-last stretches of a graph in the channels-first form."""
