"""Arithmetic that processors share: Winograd, Strassen, strided copies."""
