"""OpenCL routines for int8 layers: the integers that the CPU's int8 routines compute."""
