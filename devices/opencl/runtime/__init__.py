"""OpenCL drivers, contexts, buffers and queues."""
