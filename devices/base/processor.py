"""Interface of a processor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from nnstretch.devices.base.backend import Backend
from nnstretch.devices.base.description import Description
from nnstretch.devices.base.routine import Layout, Routine
from nnstretch.devices.base.spec import ProcessorSpec


class ProcessorKind(ABC):
    """A kind of processor: its specifications, whose form stands in `nnstretch.devices.registry`, and how they are opened.

    Attributes:
        examples: specifications and what they mean, for the documentation.
        has_cores: whether its processors use cores of this machine, as in `litert@0`.
    """

    examples: Mapping[str, str]
    has_cores: bool = True

    @abstractmethod
    def canonical_argument(self, argument: str) -> str:
        """Canonical form of the text after the colon of a specification; empty for the default.

        Raises:
            UsageError: the text is malformed.
        """

    @abstractmethod
    def processor(self, spec: ProcessorSpec) -> Processor:
        """Opens a processor of this kind.

        Raises:
            MissingExtraError: its library is not installed.
            DeviceError: it does not exist or does not work.
        """


class Processor(ABC):
    """A group of CPU cores, an OpenCL device, or an external engine on its own cores; runs sub-graphs independently.

    Attributes:
        spec: its specification, with cores.
        blocked: its preferred blocked layout, the same for all processors of a plan to avoid layout changes.
        backend: the kind of its queue in a plan.
        routines: in order of expected speed; the first that supports a layer is the untuned choice.
        reorder: changes the layout of a tensor (`reorder_layer`). If the backend changes no layouts, it is an identity call,
            which measures the overhead of a call.
        coherent: whether host and processor may concurrently write different bytes of one shared buffer: CPU cores,
            OpenCL devices on the CPU, and devices with fine-grained shared memory.
        in_host_memory: whether the memory of a device's own is arrays of the host's, which hold a run's results after it.
    """

    spec: ProcessorSpec
    blocked: Layout
    backend: Backend
    routines: Sequence[Routine]
    reorder: Routine
    coherent: bool = True
    in_host_memory: bool = False

    @property
    def name(self) -> str:
        """Specification of the processor as text, e.g. `cpu:0-1`."""
        return str(self.spec)

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Key of its measurements: model, cores in use, engine."""

    def why_lost(self) -> str:
        """One line on why the processor has stopped working, from a test of this moment; empty if it works or has no test."""
        return ""

    def describe(self) -> Description | None:
        """Description for predictions on another machine; None if they are not possible."""
        return None
