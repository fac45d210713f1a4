"""The contract of a processor: something that runs a sub-graph by itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from nnstretch.devices.base.backend import Backend
from nnstretch.devices.base.description import Description
from nnstretch.devices.base.routine import Layout, Routine
from nnstretch.devices.base.spec import ProcessorSpec


class Processor(ABC):
    """A group of CPU cores, an OpenCL device, or another engine on cores of its own.

    Attributes:
        spec: how it is written, with its cores.
        dtypes: element types that its routines compute in.
        blocked: its preferred blocked layout. All processors of one plan share it, so that data cross without a layout change.
        backend: the kind of its queue in a plan.
        coherent: whether host and processor may write different bytes of one shared buffer at the same time. That holds for
            CPU cores and for OpenCL devices that are the CPU; for others only with fine-grained shared memory.
    """

    spec: ProcessorSpec
    dtypes: tuple[str, ...]
    blocked: Layout
    backend: Backend
    coherent: bool = True

    @property
    def name(self) -> str:
        """The processor as written, e.g. `cpu:0-1`."""
        return str(self.spec)

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Identity for measurements: what must be equal for a measured latency to hold (model, cores in use, engine)."""

    def describe(self) -> Description | None:
        """What predicts its latencies on another machine; None if that is not possible."""
        return None

    @property
    @abstractmethod
    def routines(self) -> Sequence[Routine]:
        """Routines for layers, best guess first: the first that supports a layer is the untuned choice."""

    @abstractmethod
    def reorder(self) -> Routine:
        """The routine that changes the layout of a tensor (the layer `reorder_layer`).

        Where the backend changes no layouts, the routine passes a plain tensor through a call: the cost to enter and leave one.
        """
