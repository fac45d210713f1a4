"""The OpenCL processor: kernels, the routines that use them, and the runtime that builds them."""

from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.devices.opencl.runtime.drivers import DeviceInfo, load_drivers, probe

__all__ = ["DeviceInfo", "OpenCLProcessor", "load_drivers", "probe"]
