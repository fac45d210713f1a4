"""Interleaved timing, its statistics, and facts about the machine."""
