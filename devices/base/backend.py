"""Backends: kinds of queue in a plan, and how they load memory and steps of their queues.

`nnstretch.scheduler.runtime.loading` combines the backends of a plan.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
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

    def require_memory(self, queue: int, sizes: Sequence[int], shared: Sequence[int]) -> None:
        """Checks that a queue's device may hold what a plan needs there; nothing was allocated before.

        Args:
            queue: number of the queue.
            sizes: bytes of the memories that only the device uses.
            shared: bytes of those shared with the host, in the order of `share`.

        Raises:
            DeviceError: its device has too little.
        """

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
    def trace_times(self) -> bool:
        """Whether steps of a trace have times of execution, and not of launch; true by default."""
        return True

    @property
    def trace_seconds(self) -> float:
        """By which each of their steps takes longer in a traced run than in others; 0 by default."""
        return 0.0

    @property
    @abstractmethod
    def host_arrays(self) -> dict[MemoryKey, np.ndarray]:
        """Memories of the queues that are host arrays."""


@dataclass(frozen=True)
class Backend:
    """A kind of queue and the properties that planning, validation and cost models use.

    Attributes:
        name: stored in plans as the kind of a queue.
        description: name of the kind in messages.
        step_kinds: kinds of steps that the queue runs.
        load: loads all queues of this kind in a plan.
        own_memory: whether each queue has its own memory for tensors and constants; other queues use host memory.
        serves_caller: whether the calling thread can run such a queue, as it runs queue 0.
        launched_by_caller: whether the calling thread launches the queue's sub-graphs; other queues have a thread each.
        changes_layouts: whether the queue has a layout-change routine; if not, queue 0 changes layouts for it.
        runs_models: whether the queue only calls models of an external engine. All layers between two joins become one
            call, which has a cost of its own.
        synchronises: whether a tensor that crosses to or from the queue costs a transfer.
        has_ratios: whether the queue's cores may have relative speeds.
    """

    name: str
    description: str
    step_kinds: tuple[StepKind, ...]
    load: Callable[[LoadRequest], LoadedQueues]
    own_memory: bool = False
    serves_caller: bool = False
    launched_by_caller: bool = False
    changes_layouts: bool = True
    runs_models: bool = False
    synchronises: bool = True
    has_ratios: bool = False

    def runs(self, kind: StepKind, launch: Launch | None) -> bool:
        """Whether the queue runs steps of a kind; OpenCL kernels alone have a launch configuration."""
        return kind in self.step_kinds and (kind == "opencl") == (launch is not None)

    def domain(self, queue: int) -> int:
        """The memory domain of queue number `queue` of this kind: 0 for host memory, else the queue itself."""
        return queue if self.own_memory else 0
