"""Algorithms shared by several processors: Winograd, Strassen, strided copies."""
