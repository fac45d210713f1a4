"""Interface of a backend for loading a plan: memory and steps of its queues.

`nnstretch.scheduler.runtime.loading` combines the backends of a plan.
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
    """Location of an operand."""

    memory: MemoryKey
    offset: int
    bytes: int


@dataclass(frozen=True)
class LoadableQueue:
    """A queue of a plan.

    Attributes:
        processor: specification in the plan.
        planned_cores: cores in the plan.
        cores: cores that it runs on in this process.
        ratios: relative speeds of the cores; empty if equal.
    """

    processor: str
    planned_cores: tuple[int, ...]
    cores: tuple[int, ...]
    ratios: tuple[int, ...]


@dataclass(frozen=True)
class LoadableStep:
    """A step of a plan with the locations of its operands.

    Attributes:
        layer: name of the layer, for messages.
        routine: descriptor of its routine.
        kind: kernel, OpenCL kernel or call.
        kernel: name of the kernel or model.
        reads: one location per operand; None for an absent optional operand.
        writes: one location per result.
        read_types: types of the tensors that a model reads.
        write_types: types of the tensors that a model writes.
        arguments: integer parameters of a kernel.
        launch: launch of an OpenCL kernel.
        model: content of the model named `kernel`, if the package has it.
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
"""A step in the engine: the number of a native kernel, an OpenCL launch, or a call."""


@dataclass(frozen=True)
class LoadRequest:
    """The queues of one backend in a plan.

    Attributes:
        queues: queues by number in the plan.
        native: the engine that runs the program.
        sources: kernel sources to build; None for the installed ones.
        replica: the same queues of an earlier load of the plan, which shares weights and built kernels.
    """

    queues: Mapping[int, LoadableQueue]
    native: Engine
    sources: Mapping[str, str] | None = None
    replica: LoadedQueues | None = None


class LoadedQueues(ABC):
    """The queues of one backend in a loaded plan. The program keeps this object alive."""

    @abstractmethod
    def engine_queue(self, queue: int) -> Queue:
        """Queue number `queue` in the engine's format."""

    @abstractmethod
    def step(self, queue: int, step: LoadableStep) -> StepTarget:
        """Prepares a step on queue number `queue` for the engine.

        Raises:
            PackageError: the step does not fit this version, or its model is missing.
            DeviceError: the processor rejects it.
        """

    def semaphores(self, waits: Sequence[Sequence[int]]) -> Semaphores | None:
        """Device-side semaphores that wait for other queues; None if the device has none.

        Args:
            waits: per sub-graph of the plan, the sub-graphs that it waits for; empty for sub-graphs of other backends.
        """
        return None

    @property
    def used_sources(self) -> dict[str, str]:
        """Kernel sources of the steps: name -> text."""
        return {}

    def activate(self, others: Sequence[LoadedQueues]) -> None:  # noqa: B027 - optional
        """Called before each run; `others` are queues of the same backend in concurrent programs."""

    def distrust(self) -> None:  # noqa: B027 - optional
        """Called after a failure: later programs must not reuse shared state of these queues."""


class LoadedDeviceQueues(LoadedQueues):
    """Queues with their own memory."""

    @abstractmethod
    def share(self, queue: int, slots: Mapping[int, int]) -> dict[int, Region]:
        """Allocates memory shared by host and queue number `queue`: slot -> region, for `slots` of sizes in bytes."""

    @abstractmethod
    def hold_constants(self, queue: int, constants: np.ndarray) -> None:
        """Copies the constants (uint8) of queue number `queue` to its memory."""

    @abstractmethod
    def hold_arena(self, queue: int, size: int) -> None:
        """Allocates an arena of `size` bytes for queue number `queue`."""

    @property
    @abstractmethod
    def host_arrays(self) -> dict[MemoryKey, np.ndarray]:
        """Memories of the queues that are host arrays."""
