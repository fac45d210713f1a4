"""Tests an OpenCL device with kernels of nnstretch: `python -m nnstretch.devices.opencl.probe_worker INDEX PARENT`.

PARENT is the number of the process that starts it, with which it ends, also while a driver hangs.
The worker writes frames to its standard output. A driver may end the process before one of them:

    {"why_not": one line}                                    # a kernel failed or gave wrong results, or
    {"why_not": "", "command_times": whether profiling says when commands ran,
     "trace_seconds": by which a traced run takes longer for every kernel}
    {"semaphores": whether a running kernel saw a write of the host}
    {"why_no_images": one line on why kernels may not read images, or ""}
    {"command_buffers": "", "works" or "faster": `devices/opencl/command_buffers.py`}
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from nnstretch.devices.base.routine import PIXEL_NUMBERS
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.engine.binding.program import opencl_library
from nnstretch.devices.opencl import command_buffers
from nnstretch.devices.opencl.drivers import build, device_info, import_pyopencl
from nnstretch.devices.opencl.probe_layers import PreparedLayer, buffer_of, exact_convolution, exact_layers
from nnstretch.devices.opencl.routines.direct import Direct
from nnstretch.devices.opencl.runtime import OpenCLRuntime
from nnstretch.devices.opencl.semaphores import make_semaphores, takes_semaphores
from nnstretch.errors import BuildError, DeviceError, NNStretchError
from nnstretch.graph.dtypes import DEFAULT_DTYPE, FLOAT16, element_type
from nnstretch.support.child_process import die_with_parent, frames_to_parent
from nnstretch.support.frames import write_frame

if TYPE_CHECKING:
    import pyopencl

_COPIED, _LEAST_NANOSECONDS = 4 << 20, 1000
_ITERATIONS = 1 << 18
_LAUNCHES, _TURNS = 64, 7
_LAUNCH_ITERATIONS = 1 << 12
"""Of a kernel that takes longer than its launch, as those of networks do."""
_COUNT = """
kernel void count(global uint *numbers, uint iterations)
{
    uint sum = 0;
    for (uint i = 0; i < iterations; i++)
        sum += numbers[1 + i % 7];
    numbers[0] = sum;
}
"""


def check_kernels(runtime: OpenCLRuntime) -> None:
    """Runs layers whose results are exact.

    Raises:
        BuildError: a kernel does not compile.
        DeviceError: a result is wrong, or the driver reports an error.
    """
    for exact in exact_layers(runtime):
        PreparedLayer(runtime, exact).run()


def check_images(runtime: OpenCLRuntime) -> None:
    """Runs convolutions whose weights, of float32 and of float16, are images.

    They are images of whole buffers, and also of parts where buffers may be larger than the largest image.

    Raises:
        BuildError: a kernel does not compile.
        DeviceError: the device should read buffers alone, a result is wrong, or the driver reports an error.
    """
    info, largest = runtime.info, runtime.largest_image
    if info.on_cpu or not info.image_buffer:
        raise DeviceError("there are none" if not info.image_buffer else "a CPU has no cache for them")
    pixel = PIXEL_NUMBERS * element_type(FLOAT16).bytes
    try:
        for limit in (largest, *((0,) if info.image_buffer * pixel < info.allocation_bytes else ())):
            runtime.largest_image = limit
            for dtype in (DEFAULT_DTYPE, FLOAT16):
                PreparedLayer(runtime, exact_convolution(Direct(runtime.traits, dtype))).run()
    finally:
        runtime.largest_image = largest


def why_no_images(runtime: OpenCLRuntime) -> str:
    """One line on why kernels may not read images of a device; empty if they may."""
    import pyopencl as cl

    try:
        check_images(runtime)
    except (BuildError, DeviceError, cl.Error, MemoryError) as error:
        return (str(error).strip() or type(error).__name__).splitlines()[0]
    return ""


def check_command_buffers(runtime: OpenCLRuntime) -> str:
    """As `DeviceInfo.command_buffers`: the layers' kernels and those of a chain in one command buffer."""
    if command_buffers.EXTENSION not in str(runtime.device.extensions).split():
        return ""
    prepared = [PreparedLayer(runtime, exact) for exact in exact_layers(runtime)]
    if not command_buffers.is_recorded_right(runtime, [one.launch for one in prepared]):
        return ""
    if any(one.wrong() for one in prepared):
        return ""
    faster = not runtime.info.on_cpu and command_buffers.is_faster(runtime)
    return command_buffers.FASTER if faster else command_buffers.WORKS


def check_loops(runtime: OpenCLRuntime) -> None:
    """Runs a long loop. Mesa's llvmpipe ends all loops of a work item after 65,535 iterations together, without an error.

    A 3 × 3 convolution of 512 channels takes more of them, and its sums would miss the rest.

    Raises:
        DeviceError: the loop ended early.
    """
    import pyopencl as cl

    numbers = np.ones(8, np.uint32)
    memory = buffer_of(runtime, numbers)
    kernel = _count(runtime)
    kernel(runtime.queue, (1,), (1,), memory, np.uint32(_ITERATIONS))
    cl.enqueue_copy(runtime.queue, numbers, memory)
    if numbers[0] != _ITERATIONS:
        raise DeviceError(
            f"a loop of {_ITERATIONS} iterations ended after {numbers[0]}, so large layers would be computed wrongly"
        )


def has_command_times(runtime: OpenCLRuntime) -> bool:
    """Whether the queue of traced runs says when commands ran: the time of a copy is possible."""
    import pyopencl as cl

    if runtime.trace_queue is None:
        return False
    values = np.zeros(_COPIED, np.uint8)
    event = cl.enqueue_copy(runtime.trace_queue, values, buffer_of(runtime, values))
    event.wait()
    try:
        return bool(event.profile.end - event.profile.start >= _LEAST_NANOSECONDS)
    except cl.Error:
        return False


def trace_seconds(runtime: OpenCLRuntime) -> float:
    """Seconds by which a traced run takes longer for every kernel: its event, and a queue that profiles.

    On a CPU, where the times of the host vary more than that, it counts as nothing.
    """
    if runtime.info.on_cpu or runtime.trace_queue is None:
        return 0.0
    memory, kernel = buffer_of(runtime, np.ones(8, np.uint32)), _count(runtime)
    kernel.set_args(memory, np.uint32(_LAUNCH_ITERATIONS))
    plain = min(_seconds_of_launches(runtime.queue, kernel, [None] * _LAUNCHES) for _ in range(_TURNS))
    traced = min(
        _seconds_of_launches(runtime.trace_queue, kernel, [ctypes.c_void_p() for _ in range(_LAUNCHES)])
        for _ in range(_TURNS)
    )
    return max(0.0, traced - plain) / _LAUNCHES


def _seconds_of_launches(
    queue: pyopencl.CommandQueue, kernel: pyopencl.Kernel, events: Sequence[ctypes.c_void_p | None]
) -> float:
    """Seconds of a launch for every event; None: a launch without one, which pyopencl does not have."""
    import pyopencl as cl

    enqueue, one = ctypes.CDLL(opencl_library()).clEnqueueNDRangeKernel, ctypes.c_size_t(1)
    handles = [ctypes.c_void_p(handle) for handle in (queue.int_ptr, kernel.int_ptr)]
    size = ctypes.byref(one)
    begin = time.perf_counter()
    for event in events:
        enqueue(*handles, 1, None, size, size, 0, None, None if event is None else ctypes.byref(event))
    queue.finish()
    seconds = time.perf_counter() - begin
    for event in events:
        if event is not None and event.value is not None:
            cl.Event.from_int_ptr(event.value, retain=False)  # which releases it
    return seconds


def check_semaphores(runtime: OpenCLRuntime) -> bool:
    """Whether a semaphore ends after the host has set its flag; does not return if the kernel never sees the flag."""
    if not takes_semaphores(runtime):
        return False
    import pyopencl as cl

    semaphores, _memory = make_semaphores(runtime, [[], [0]])
    launch = semaphores.launches[1]
    assert launch is not None
    cl.enqueue_nd_range_kernel(
        runtime.queue, cast("pyopencl.Kernel", launch.kernel), launch.global_size, launch.local_size
    )
    runtime.queue.flush()
    semaphores.flags[0] = 1
    runtime.queue.finish()
    return True


def _count(runtime: OpenCLRuntime) -> pyopencl.Kernel:
    import pyopencl as cl

    return cl.Kernel(build(cl.Program(runtime.context, _COUNT), ()), "count")


def main() -> int:
    """Tests the device that the first argument names."""
    die_with_parent(int(sys.argv[2]))
    answers = frames_to_parent()
    import_pyopencl()
    import pyopencl as cl

    index = int(sys.argv[1])
    try:
        runtime = OpenCLRuntime(ProcessorSpec("opencl", index), profile=True, info=device_info(index))
        check_loops(runtime)
        check_kernels(runtime)
    except (BuildError, DeviceError, cl.Error, MemoryError) as error:
        write_frame(answers, {"why_not": (str(error).strip() or type(error).__name__).splitlines()[0]})
        return 0
    times = {"command_times": has_command_times(runtime), "trace_seconds": trace_seconds(runtime)}
    write_frame(answers, {"why_not": "", **times})
    write_frame(answers, {"semaphores": check_semaphores(runtime)})
    write_frame(answers, {"why_no_images": why_no_images(runtime)})
    try:
        found = check_command_buffers(runtime)
    except (NNStretchError, cl.Error, MemoryError):
        found = ""
    write_frame(answers, {"command_buffers": found})
    return 0


if __name__ == "__main__":
    sys.exit(main())
