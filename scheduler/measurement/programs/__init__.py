"""OpenCL programs of layers, compiled before the layers are measured."""
