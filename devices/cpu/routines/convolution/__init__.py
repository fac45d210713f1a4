"""CPU routines for convolutions."""
