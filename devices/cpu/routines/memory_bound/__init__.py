"""CPU routines for memory-bound layers."""
