"""The contract of a processor: something that runs a sub-graph by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

from nnstretch.devices.base.description import Description
from nnstretch.devices.base.routine import Layout, Routine
from nnstretch.devices.base.spec import ProcessorSpec

QueueKind = Literal["host", "opencl", "call"]
"""Who computes the steps of a queue: a thread pool by kernels of the engine (queue 0 is of this kind), an OpenCL queue, or a
thread that calls another engine's models."""


class Processor(ABC):
    """A group of CPU cores, an OpenCL device, or another engine on cores of its own.

    Attributes:
        spec: how it is written, with its cores.
        dtypes: element types that its routines compute in.
        blocked: its preferred blocked layout; all processors of one plan share it, so that data cross without a change.
        memory: "host" if its kernels read and write host memory, else "opencl".
        coherent: whether host and processor may write different bytes of one shared buffer at the same time (always so for
            CPU cores and OpenCL devices that are the CPU; for others only with fine-grained shared memory).
    """

    spec: ProcessorSpec
    dtypes: tuple[str, ...]
    blocked: Layout
    memory: str
    coherent: bool = True

    @property
    def name(self) -> str:
        """The processor as written, e.g. `cpu:0-1`."""
        return str(self.spec)

    @property
    def queue(self) -> QueueKind:
        """Of which kind its queue in a plan is."""
        return "opencl" if self.memory == "opencl" else "host"

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Identity for measurements: what must be equal for a measured latency to hold (model, cores in use, engine)."""

    def describe(self) -> Description | None:
        """What must be known of it to predict latencies where it is not; None if that is not possible."""
        return None

    @property
    @abstractmethod
    def routines(self) -> Sequence[Routine]:
        """Routines for layers, best guess first: the first that supports a layer is the untuned choice."""

    @abstractmethod
    def reorder(self) -> Routine:
        """The routine that changes the layout of a tensor (of a pseudo-layer `Reorder`, see `reorder_layer`).

        Queues of calls have none in plans; theirs hands a plain tensor through a call, which says what it costs to get into one
        and out.
        """
