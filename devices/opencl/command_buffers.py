"""Command buffers (cl_khr_command_buffer): the kernels of a sub-graph are recorded once and enqueued as one command.

A test in a process of its own (`probe_worker`) says whether a driver's command buffers give the right numbers, and on a GPU
whether a run with them takes less time. The setting NNSTRETCH_COMMAND_BUFFERS goes before that.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from nnstretch.devices.engine.binding.image import KernelLaunch, Queue, QueueKind, Step, StepKind, SubGraph
from nnstretch.devices.engine.binding.program import Program
from nnstretch.devices.opencl.drivers import build
from nnstretch.support.settings import command_buffers_setting

if TYPE_CHECKING:
    import pyopencl

    from nnstretch.devices.opencl.properties import DeviceInfo
    from nnstretch.devices.opencl.runtime import OpenCLRuntime

EXTENSION = "cl_khr_command_buffer"
WORKS, FASTER = "works", "faster"
"""Results of the test; "" is another: there are no command buffers, or they are wrong."""

_FOLLOWERS = 6
"""Kernels whose order shows in the result."""
_SHORT_KERNELS, _TURNS, _RUNS = 64, 9, 5
_GAIN = 0.95
"""Share of the time of single launches that a run may take at most to count as faster: less is within the noise."""
_SOURCE = """
kernel void follow(global uint *number, uint factor, uint term)
{
    number[0] = number[0] * factor + term;
}
"""


def records(info: DeviceInfo) -> bool:
    """Whether queues of a device record: always, never, or by default GPUs that are faster so.

    Raises:
        UsageError: the setting is neither 0 nor 1.
    """
    setting = command_buffers_setting()
    if setting is None:
        return not info.on_cpu and info.command_buffers == FASTER
    return setting and info.command_buffers in (WORKS, FASTER)


def is_recorded_right(runtime: OpenCLRuntime, launches: Sequence[KernelLaunch]) -> bool:
    """Whether a chain of kernels behind `launches`, each on the number that the one before wrote, is right, run after run.

    The caller checks what `launches` wrote. False if the driver cannot record them.
    """
    import pyopencl as cl

    source = build(cl.Program(runtime.context, _SOURCE), ())
    number = np.zeros(1, np.uint32)
    memory = cl.Buffer(runtime.context, cl.mem_flags.READ_WRITE, number.nbytes)
    followers = []
    for i in range(_FOLLOWERS):
        kernel = cl.Kernel(source, "follow")
        kernel.set_args(memory, np.uint32(i + 2), np.uint32(i + 7))
        followers.append(KernelLaunch(kernel, (1,)))
    with _program(runtime, [*launches, *followers], records=True) as program:
        for begin in (1, 5, 9):
            number[0] = wanted = begin
            cl.enqueue_copy(runtime.queue, memory, number)
            program.run()
            cl.enqueue_copy(runtime.queue, number, memory)
            for i in range(_FOLLOWERS):
                wanted = (wanted * (i + 2) + i + 7) % (1 << 32)
            if number[0] != wanted:
                return False
        return program.recorded == 1


def is_faster(runtime: OpenCLRuntime) -> bool:
    """Whether a run of many short kernels takes less time if they are recorded, by medians of interleaved turns."""
    import pyopencl as cl

    source = build(cl.Program(runtime.context, _SOURCE), ())
    memory = cl.Buffer(runtime.context, cl.mem_flags.READ_WRITE, 4)
    times: tuple[list[float], list[float]] = [], []
    with (
        _program(runtime, _short_kernels(source, memory), records=False) as single,
        _program(runtime, _short_kernels(source, memory), records=True) as recorded,
    ):
        for _ in range(_TURNS):
            for program, taken in zip((single, recorded), times, strict=True):
                taken.append(median(program.time(warmup=1, runs=_RUNS)))
        return recorded.recorded == 1 and median(times[1]) <= _GAIN * median(times[0])


def _short_kernels(source: pyopencl.Program, memory: pyopencl.Buffer) -> list[KernelLaunch]:
    import pyopencl as cl

    kernels = [cl.Kernel(source, "follow") for _ in range(_SHORT_KERNELS)]
    for kernel in kernels:
        kernel.set_args(memory, np.uint32(3), np.uint32(1))
    return [KernelLaunch(kernel, (1,)) for kernel in kernels]


def _program(runtime: OpenCLRuntime, launches: Sequence[KernelLaunch], *, records: bool) -> Program:
    """A program of one sub-graph with these kernels."""
    queues = [
        Queue(QueueKind.HOST),
        Queue(QueueKind.OPENCL, (), runtime.queue, name=runtime.info.name, records=records),
    ]
    steps = [Step(StepKind.OPENCL, number) for number in range(len(launches))]
    return Program(queues, (), (), steps, [SubGraph(1, len(launches))], launches=launches)
