"""Try every OpenCL device by building and running a kernel on it.

A driver may list a device on which nothing builds, so listing proves nothing. Prints one line per device and
ends with status 0 if at least one of them computed the right answer, 1 if none did.
"""

import os
import sys

import numpy as np

# A kernel from pyopencl's own cache would hide a compiler that does not work; read when pyopencl is imported.
os.environ["PYOPENCL_NO_CACHE"] = "1"

import pyopencl as cl

SOURCE = "kernel void twice(global float *x) { x[get_global_id(0)] *= 2.0f; }"


def why_unusable(device: cl.Device) -> str | None:
    """Return None if the device doubles a few numbers, else the first line of what went wrong."""
    values = np.arange(64, dtype=np.float32)
    answer = np.empty_like(values)
    try:
        context = cl.Context([device])
        queue = cl.CommandQueue(context)
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
        buffer = cl.Buffer(context, flags, hostbuf=values)
        kernel = cl.Kernel(cl.Program(context, SOURCE).build(), "twice")
        kernel(queue, values.shape, None, buffer)
        cl.enqueue_copy(queue, answer, buffer)
        queue.finish()
    except cl.Error as error:
        return (str(error).strip().splitlines() or [type(error).__name__])[0]
    return None if np.array_equal(answer, 2 * values) else "a kernel gave a wrong answer"


def devices() -> list[cl.Device]:
    """Return the devices of all platforms; a platform that cannot say which it has counts as having none."""
    found: list[cl.Device] = []
    try:
        platforms = cl.get_platforms()
    except cl.Error:  # the loader's way to say that it knows no platform
        return found
    for platform in platforms:
        try:
            found += platform.get_devices()
        except cl.Error as error:
            print(f"OpenCL: {platform.name}: lists no devices ({error})")
    return found


def main() -> int:
    """Probe all devices and return the exit status."""
    usable = 0
    for device in devices():
        why_not = why_unusable(device)
        usable += why_not is None
        verdict = "works" if why_not is None else f"does not work ({why_not})"
        print(f"OpenCL: {device.platform.name}, {device.name}: {verdict}")
    return 0 if usable else 1


if __name__ == "__main__":
    sys.exit(main())
