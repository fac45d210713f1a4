"""CPU routines: the layers that each engine kernel supports, and their lowering to kernel calls."""
