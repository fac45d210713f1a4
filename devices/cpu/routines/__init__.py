"""Routines of the CPU: what each kernel of the engine supports, and how layers become calls of it."""
