"""What sessions of all kinds can be asked."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import Plan, PlanTensor
from nnstretch.scheduler.runtime.timeline import Timeline
from nnstretch.support.closing import Closing

Feeds = Mapping[str, np.ndarray]
Outputs = list[np.ndarray]

_TYPE_NAMES = {"float32": "tensor(float)", "float64": "tensor(double)"}


@dataclass(frozen=True)
class NodeArg:
    """Name, shape and type of an input or output, as ONNX Runtime describes them."""

    name: str
    shape: tuple[int, ...]
    type: str


class BaseSession(Closing):
    """Runs a network, called as ONNX Runtime's sessions are. Thread-safe, and usable as a context manager."""

    @property
    @abstractmethod
    def plan(self) -> Plan:
        """What is run; of several plans the one in use, or that of the first team."""

    @abstractmethod
    def run(self, output_names: Sequence[str] | None, feeds: Feeds) -> Outputs:
        """Runs one input and returns the named outputs (all if None) as new arrays.

        Args:
            output_names: those wanted, in this order.
            feeds: an array for each input.

        Raises:
            FeedError: unknown or missing names, wrong shapes or types.
            DeviceError: every processor that could compute it failed; the session can be run again.
            UsageError: the session is closed.
        """

    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs in order."""
        return [_node_arg(t) for t in self.plan.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs in order."""
        return [_node_arg(t) for t in self.plan.outputs]

    def zeros(self) -> dict[str, np.ndarray]:
        """Zeros for all inputs."""
        return {t.name: np.zeros(t.type.shape, t.type.dtype) for t in self.plan.inputs}


class LatencySession(BaseSession):
    """A session that computes one input at a time, so that runs can be timed, traced and given a deadline.

    Concurrent runs take turns.
    """

    @property
    @abstractmethod
    def compiled(self) -> Compiled:
        """The plan in use with its constants and how its routines were selected."""

    @property
    def plan(self) -> Plan:
        """The plan in use."""
        return self.compiled.plan

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether a run that missed its deadline is not over: until it is, what it runs on is refused to others."""

    @abstractmethod
    def run(self, output_names: Sequence[str] | None, feeds: Feeds, *, deadline: float | None = None) -> Outputs:
        """As `BaseSession.run`; gives up after `deadline` seconds, whatever hangs: a device, an external engine or a kernel.

        As long as the session is `busy` then, `feeds` must not change.

        Raises:
            UsageError: the deadline is no time.
            DeadlineError: the run is not over by its deadline, and nothing else can take its place.
        """

    @abstractmethod
    def time(self, feeds: Feeds | None = None, *, warmup: int = 10, runs: int = 100, budget: float = 2.0) -> np.ndarray:
        """Seconds of each of up to `runs` runs after `warmup`; stops once `budget` seconds have passed.

        Without `feeds`, zeros are fed.
        """

    @abstractmethod
    def profile(self, feeds: Feeds | None = None, runs: int = 9) -> Timeline:
        """The timeline of a run of median duration out of `runs`, after one that does not count.

        Without `feeds`, zeros are fed.
        """

    @abstractmethod
    def save(self, path: str | Path, metadata: Mapping[str, Any] | None = None) -> None:
        """Writes a package (.nns) that `Session.load` and `AdaptiveSession.load` read.

        Raises:
            FileError: the place is not writable or the disk is full.
        """


def _node_arg(tensor: PlanTensor) -> NodeArg:
    dtype = tensor.type.dtype
    return NodeArg(tensor.name, tensor.type.shape, _TYPE_NAMES.get(dtype, f"tensor({dtype})"))
