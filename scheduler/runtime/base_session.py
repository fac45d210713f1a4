"""The interface of a session: what every session offers, whether it runs one plan, several plans or several streams."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, overload

import numpy as np

from nnstretch.errors import FeedError, NNStretchError
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import Plan, PlanTensor
from nnstretch.scheduler.runtime.arguments import Arguments
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


@dataclass(frozen=True)
class Switch:
    """A change of plan: before which attempt (counted from 0), from which plan to which, and why."""

    attempt: int
    before: str
    plan: str
    reason: str


class Binding:
    """Arrays that many runs of a session use; `Session.bind` makes it.

    Attributes:
        inputs: an array for each input. Write the values of the next run into it; another array cannot take its place.
        outputs: an array for each output, which every run overwrites.
    """

    def __init__(self, inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray], run: Callable[[], None]) -> None:
        self.inputs, self.outputs, self._run = MappingProxyType(inputs), MappingProxyType(outputs), run

    def run(self) -> Mapping[str, np.ndarray]:
        """Runs the session once and returns `outputs`. Concurrent runs of a binding would use the same arrays.

        Raises:
            DeviceError, UsageError: as `Session.run`.
        """
        self._run()
        return self.outputs


class Session(Closing):
    """A network that is ready to run: what `nnstretch.compile` returns.

    The calls are those of ONNX Runtime's sessions. Every session has all of them; what it was compiled for decides
    how it answers:

    - for one plan, runs take turns;
    - with `plans` or a `policy`, every run takes the plan that the policy chooses, and `switches` lists the changes;
    - with `streams`, up to that many inputs are computed at the same time: use `run_many`, `stream` or `submit`.

    Thread-safe, and a context manager that closes the session.
    """

    @property
    @abstractmethod
    def compiled(self) -> Compiled:
        """The plan in use with its constants, and how its routines were selected."""

    @property
    def plan(self) -> Plan:
        """The plan in use; with streams, that of the first replica group."""
        return self.compiled.plan

    @abstractmethod
    def run(self, output_names: Sequence[str] | None, feeds: Feeds, *, deadline: float | None = None) -> Outputs:
        """Runs one input and returns the named outputs as new arrays.

        Args:
            output_names: the outputs to return, in this order; all if None.
            feeds: an array for each input. With a deadline they must not change while the session is `busy`.
            deadline: seconds after which the call gives up, even if a device, an external engine or a kernel hangs.

        Raises:
            FeedError: unknown or missing names, wrong shapes or types.
            DeviceError: every processor that could compute it failed; the session can be run again.
            DeadlineError: the run did not end by its deadline, and no other plan could take its place.
            UsageError: the session is closed, or the deadline is not a positive number.
        """

    def bind(self, feeds: Feeds) -> Binding:
        """Arrays for many runs, checked once. A run takes some ten microseconds less than `run` then.

        Args:
            feeds: a C-contiguous array for each input, which the binding keeps. Write the values of each run into it; do not
                resize it.

        Raises:
            FeedError: unknown or missing names, wrong shapes or types, or arrays that would have to be copied.
        """
        arguments = Arguments(self.plan.inputs, self.plan.outputs)
        inputs, outputs = arguments.bound_arrays(feeds), arguments.new_outputs()
        return Binding(
            {tensor.name: feeds[tensor.name] for tensor in self.plan.inputs},
            {tensor.name: array for tensor, array in zip(self.plan.outputs, outputs, strict=True)},
            self._bound(inputs, outputs),
        )

    def _bound(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> Callable[[], None]:
        """A function that runs the session with these arrays."""
        feeds = {tensor.name: array for tensor, array in zip(self.plan.inputs, inputs, strict=True)}

        def run() -> None:
            for place, found in zip(outputs, self.run(None, feeds), strict=True):
                place[...] = found

        return run

    def submit(
        self, feeds: Feeds, output_names: Sequence[str] | None = None, timeout: float | None = None
    ) -> Future[Outputs]:
        """Queues an input and returns its future outputs.

        With streams, the call waits while the queue is full. Without streams, the input is computed before
        the call returns.

        Args:
            feeds: an array for each input; they must not change before the outputs are there.
            output_names: the outputs to return, in this order; all if None.
            timeout: seconds to wait for a place in the queue; None: no limit.

        Raises:
            FeedError: unknown or missing names, wrong shapes or types.
            TimeoutError: the queue was full for `timeout` seconds.
            UsageError: the session is closed.
        """
        answer: Future[Outputs] = Future()
        try:
            answer.set_result(self.run(output_names, feeds))
        except FeedError:
            raise
        except NNStretchError as error:
            answer.set_exception(error)
        return answer

    def stream(self, inputs: Iterable[Feeds], output_names: Sequence[str] | None = None) -> Iterator[Outputs]:
        """Yields the outputs of inputs in their order; takes only as many from `inputs` as can be queued and computed.

        Raises:
            NNStretchError: the error of an input, in its place.
        """
        for feeds in inputs:
            yield self.run(output_names, feeds)

    @overload
    def run_many(
        self, inputs: Iterable[Feeds], output_names: Sequence[str] | None = ..., *, return_errors: Literal[False] = ...
    ) -> list[Outputs]: ...

    @overload
    def run_many(
        self, inputs: Iterable[Feeds], output_names: Sequence[str] | None = ..., *, return_errors: Literal[True]
    ) -> list[Outputs | NNStretchError]: ...

    def run_many(
        self, inputs: Iterable[Feeds], output_names: Sequence[str] | None = None, *, return_errors: bool = False
    ) -> list[Outputs] | list[Outputs | NNStretchError]:
        """Runs all inputs, even if some of them fail, and returns their outputs in order.

        Args:
            inputs: the feeds of each input.
            output_names: the outputs to return, in this order; all if None.
            return_errors: return the error of an input that failed in the place of its outputs, instead of raising the
                first error after the last run.

        Raises:
            NNStretchError: the first error, without `return_errors`.
            UsageError: the session is closed.
        """
        found: list[Outputs | NNStretchError] = []
        for coming in [self._submitted(feeds, output_names) for feeds in inputs]:
            try:
                found.append(coming.result())
            except NNStretchError as error:
                found.append(error)
        if return_errors:
            return found
        answers: list[Outputs] = []
        for one in found:
            if isinstance(one, NNStretchError):
                raise one
            answers.append(one)
        return answers

    def _submitted(self, feeds: Feeds, output_names: Sequence[str] | None) -> Future[Outputs]:
        """As `submit`; the error of feeds that do not fit is in the future."""
        try:
            return self.submit(feeds, output_names)
        except FeedError as error:
            answer: Future[Outputs] = Future()
            answer.set_exception(error)
            return answer

    @property
    @abstractmethod
    def busy(self) -> bool:
        """Whether a run that missed its deadline is still going on; it keeps its processors until it ends."""

    @property
    def switches(self) -> list[Switch]:
        """The last changes of plan, oldest first; empty for a session that holds one plan."""
        return []

    def get_inputs(self) -> list[NodeArg]:
        """The model's inputs in order."""
        return [node_arg(t) for t in self.plan.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """The model's outputs in order."""
        return [node_arg(t) for t in self.plan.outputs]

    def __repr__(self) -> str:
        """What it computes, and where."""
        inputs, outputs = (
            ", ".join(f"{one.name}: {'×'.join(map(str, one.shape))}" for one in values)
            for values in (self.get_inputs(), self.get_outputs())
        )
        return f"<{type(self).__name__} ({inputs}) -> ({outputs}) on {','.join(self.plan.processors)}>"

    def zeros(self) -> dict[str, np.ndarray]:
        """An array of zeros for each input."""
        return {t.name: np.zeros(t.type.shape, t.type.dtype) for t in self.plan.inputs}

    @abstractmethod
    def time(self, feeds: Feeds | None = None, *, warmup: int = 10, runs: int = 100, budget: float = 2.0) -> np.ndarray:
        """Times single runs, one after the other.

        Args:
            feeds: an array for each input; zeros if None.
            warmup: runs that are not timed.
            runs: timed runs at most.
            budget: seconds after which no further run begins.

        Returns:
            The seconds of each timed run.
        """

    @abstractmethod
    def profile(self, feeds: Feeds | None = None, runs: int = 9) -> Timeline:
        """The timeline of the run of median duration out of `runs`, after one warm-up run.

        Args:
            feeds: an array for each input; zeros if None.
            runs: traced runs.
        """

    @abstractmethod
    def save(self, path: str | Path, metadata: Mapping[str, Any] | None = None) -> None:
        """Writes a package (.nns), which `nnstretch.compile` opens.

        Args:
            path: of the package.
            metadata: JSON-serialisable facts to keep in it, beside those of the package that the session was opened from.

        Raises:
            FileError: the place is not writable or the disk is full.
            UsageError: the session has streams; save one without, and open its package with streams.
        """


def node_arg(tensor: PlanTensor) -> NodeArg:
    """An input or output as ONNX Runtime describes it."""
    dtype = tensor.type.dtype
    return NodeArg(tensor.name, tensor.type.shape, _TYPE_NAMES.get(dtype, f"tensor({dtype})"))
