"""The OpenCL processor: kernels, the routines that use them, and the runtime that builds them."""
