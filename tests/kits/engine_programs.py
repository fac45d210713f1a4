"""Programs of a few steps for tests of the engine: additions, and calls into Python."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.devices.base.spec import usable_cores
from nnstretch.devices.engine.binding.execution import CallFunction
from nnstretch.devices.engine.binding.image import Queue, QueueKind, Step, StepKind, SubGraph
from nnstretch.devices.engine.binding.library import engine
from nnstretch.devices.engine.binding.program import Program

CORES = usable_cores()
Arrays = Sequence[np.ndarray]


def add(reads: tuple[int, int], write: int, floats: int) -> Step:
    return Step(StepKind.KERNEL, engine().find("eltwise/binary"), reads, (write,), (0, 1, floats, 0, 1, 0, 0, 0))


def call_program(
    *calls: CallFunction, queues: Sequence[Queue] = (), waits: Sequence[tuple[int, ...]] = (), keep: object = None
) -> Program:
    """A program of call steps, each a sub-graph on the queue of its number."""
    count = len(calls)
    return Program(
        queues or [Queue(QueueKind.HOST), *[Queue(QueueKind.CALL)] * (count - 1)],
        [],
        [],
        [Step(StepKind.CALL, i) for i in range(count)],
        [SubGraph(i, 1, waits[i] if waits else ()) for i in range(count)],
        calls=calls,
        keep=keep,
    )
