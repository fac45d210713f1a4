"""Routines for float32 layers that multiply numbers rounded to float16, for CPUs with arithmetic of float16 vectors."""
