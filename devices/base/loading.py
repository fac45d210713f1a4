"""What a backend contributes when a plan is loaded: the memory and the steps of its queues, and what they need to live.

`nnstretch.scheduler.runtime.loading` puts the contributions of all backends of a plan together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from nnstretch.devices.base.routine import Launch, StepKind
from nnstretch.devices.engine.binding.execution import CallFunction
from nnstretch.devices.engine.binding.image import KernelLaunch, Queue, Region, Semaphores
from nnstretch.devices.engine.binding.library import Engine
from nnstretch.graph.layer import TensorType

MemoryKey = tuple[str, int]
"""A memory of a plan, e.g. ("shared", 2): kind and index of its buffers."""


class OperandPlace(NamedTuple):
    """Where an operand lies."""

    memory: MemoryKey
    offset: int
    bytes: int


@dataclass(frozen=True)
class LoadableQueue:
    """A queue of a plan.

    Attributes:
        processor: as written in the plan.
        planned_cores: those that the plan names.
        cores: those that it runs on here.
        ratios: relative speeds of the cores; empty: all are equal.
    """

    processor: str
    planned_cores: tuple[int, ...]
    cores: tuple[int, ...]
    ratios: tuple[int, ...]


@dataclass(frozen=True)
class LoadableStep:
    """A step of a plan with its operands' places.

    Attributes:
        layer: name of the layer, for messages.
        routine: descriptor of its routine.
        kind: what it runs.
        kernel: name of the kernel, or of the model.
        reads: one place per operand; None where an optional one is absent.
        writes: one place per result.
        read_types: of the tensors that a model reads.
        write_types: of the tensors that a model writes.
        arguments: integer parameters of a kernel.
        launch: of an OpenCL kernel.
        model: content of the model that `kernel` names, if the package has it.
    """

    layer: str
    routine: str
    kind: StepKind
    kernel: str
    reads: tuple[OperandPlace | None, ...]
    writes: tuple[OperandPlace, ...]
    read_types: tuple[TensorType, ...] = ()
    write_types: tuple[TensorType, ...] = ()
    arguments: tuple[int, ...] = ()
    launch: Launch | None = None
    model: bytes | None = None


StepTarget = int | KernelLaunch | CallFunction
"""What a step becomes in the engine: the number of a native kernel, a launch, or a call."""


@dataclass(frozen=True)
class LoadRequest:
    """The queues of one backend in a plan.

    Attributes:
        queues: by their numbers in the plan.
        native: the engine that runs the program.
        sources: kernel sources to build instead of the installed ones; None: the installed ones.
        replica: the same queues of the same plan, loaded before: weights and built kernels are shared with it.
    """

    queues: Mapping[int, LoadableQueue]
    native: Engine
    sources: Mapping[str, str] | None = None
    replica: LoadedQueues | None = None


class LoadedQueues(ABC):
    """The queues of one backend in a loaded plan. The program keeps this object alive."""

    @abstractmethod
    def engine_queue(self, queue: int) -> Queue:
        """Queue number `queue` as the engine takes it."""

    @abstractmethod
    def step(self, queue: int, step: LoadableStep) -> StepTarget:
        """What a step on queue number `queue` becomes.

        Raises:
            PackageError: the step does not fit this version, or its model is missing.
            DeviceError: the processor refuses it.
        """

    def semaphores(self, waits: Sequence[Sequence[int]]) -> Semaphores | None:
        """Semaphores by which the device waits for other queues, or None if it cannot.

        Args:
            waits: for every sub-graph of the plan those that it waits for; empty for sub-graphs of other backends.
        """
        return None

    @property
    def used_sources(self) -> dict[str, str]:
        """Name -> text of the kernel sources that the steps are built from."""
        return {}

    def activate(self, others: Sequence[LoadedQueues]) -> None:  # noqa: B027 - most backends have nothing to move
        """Called before each run; `others` are queues of the same backend in programs that run at the same time."""

    def distrust(self) -> None:  # noqa: B027 - most backends share nothing
        """Called after a failure: what later programs would share with this one is made again for them."""


class LoadedDeviceQueues(LoadedQueues):
    """Queues with memory of their own."""

    @abstractmethod
    def share(self, queue: int, slots: Mapping[int, int]) -> dict[int, Region]:
        """Memory that the host shares with queue number `queue`: slot -> region, for slots of these sizes in bytes."""

    @abstractmethod
    def hold_constants(self, queue: int, constants: np.ndarray) -> None:
        """Gives queue number `queue` a copy of its constants, uint8."""

    @abstractmethod
    def hold_arena(self, queue: int, size: int) -> None:
        """Gives queue number `queue` an arena of `size` bytes."""

    @property
    @abstractmethod
    def host_arrays(self) -> dict[MemoryKey, np.ndarray]:
        """Memories of the queues that lie in arrays of the host's."""
