"""Interface of a processor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from nnstretch.devices.base.backend import Backend
from nnstretch.devices.base.description import Description
from nnstretch.devices.base.routine import Layout, Routine
from nnstretch.devices.base.spec import ProcessorSpec


class Processor(ABC):
    """A group of CPU cores, an OpenCL device, or an external engine on its own cores; runs sub-graphs independently.

    Attributes:
        spec: its specification, with cores.
        dtypes: element types that its routines compute in.
        blocked: its preferred blocked layout, the same for all processors of a plan to avoid layout changes.
        backend: the kind of its queue in a plan.
        coherent: whether host and processor may concurrently write different bytes of one shared buffer: CPU cores,
            OpenCL devices on the CPU, and devices with fine-grained shared memory.
    """

    spec: ProcessorSpec
    dtypes: tuple[str, ...]
    blocked: Layout
    backend: Backend
    coherent: bool = True

    @property
    def name(self) -> str:
        """Specification of the processor as text, e.g. `cpu:0-1`."""
        return str(self.spec)

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Key of its measurements: model, cores in use, engine."""

    def describe(self) -> Description | None:
        """Description for predictions on another machine; None if they are not possible."""
        return None

    @property
    @abstractmethod
    def routines(self) -> Sequence[Routine]:
        """Routines in order of expected speed; the first that supports a layer is the untuned choice."""

    @abstractmethod
    def reorder(self) -> Routine:
        """The routine that changes the layout of a tensor (`reorder_layer`).

        If the backend changes no layouts, it is an identity call, which measures the overhead of a call.
        """
