"""Routines for float32 layers that multiply numbers rounded to bfloat16, for CPUs with instructions for these products."""
