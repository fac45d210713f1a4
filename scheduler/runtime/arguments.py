"""Checks of the arguments of sessions."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np

from nnstretch.errors import FeedError, UsageError
from nnstretch.scheduler.plan.schema import PlanTensor

_MOST_RUNS = 10**7
_LONGEST_BUDGET = 1e9
"""Seconds."""


class Arguments:
    """What the runs of a plan take and give.

    After the run of a large network the caches hold little of what Python needs, and the next run begins with some 0.1 µs for
    every object and line of code that it touches. So this class prepares what a run asks for, and takes few steps where the
    feeds are as they should be.

    Args:
        inputs: of the plan.
        outputs: of the plan.
    """

    def __init__(self, inputs: Sequence[PlanTensor], outputs: Sequence[PlanTensor]) -> None:
        self._inputs, self._outputs = inputs, outputs
        self._wanted = tuple((t.name, t.type.shape, t.type.element.storage) for t in inputs)
        self._given = tuple((t.type.shape, np.dtype(t.type.dtype)) for t in outputs)

    def arrays(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """The arrays of the inputs in their order, contiguous; values are never converted silently.

        Raises:
            FeedError: no dictionary, unknown or missing names, wrong shapes or types.
        """
        wanted = self._wanted
        if type(feeds) is dict and len(feeds) == len(wanted):
            found = []
            for name, shape, dtype in wanted:
                array = feeds.get(name)
                if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                    break
                found.append(np.ascontiguousarray(array))
            else:
                return found
        return _checked_feeds(feeds, self._inputs)

    def bound_arrays(self, feeds: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """As `arrays`, but in the memory of the given arrays.

        Raises:
            FeedError: as `arrays`, or an array is none or not contiguous.
        """
        found = self.arrays(feeds)
        for tensor, array in zip(self._inputs, found, strict=True):
            given: Any = feeds[tensor.name]
            if not isinstance(given, np.ndarray) or (array.size and not np.shares_memory(array, given)):
                raise FeedError(
                    f"input {tensor.name!r} is no contiguous numpy array in this machine's byte order, so runs would not "
                    "see what is written into it; bind what numpy.ascontiguousarray makes of it"
                )
        return found

    def new_outputs(self) -> list[np.ndarray]:
        """New arrays for all outputs."""
        return [np.empty(shape, dtype) for shape, dtype in self._given]

    def chosen(self, names: Sequence[str] | None, arrays: list[np.ndarray]) -> list[np.ndarray]:
        """Those of all outputs' arrays that are named, in this order; all if None. Raises as `check_names`."""
        if names is None:
            return arrays
        self.check_names(names)
        known = [t.name for t in self._outputs]
        return [arrays[known.index(name)] for name in names]

    def check_names(self, names: Sequence[str] | None) -> None:
        """Checks names of outputs.

        Raises:
            FeedError: a name is unknown, or there is no list of names.
        """
        if names is None:
            return
        known = [t.name for t in self._outputs]
        if isinstance(names, str | bytes) or not hasattr(names, "__iter__"):
            raise FeedError(f"output_names is {names!r}; give a list of some of {known}, or None for all")
        for name in names:
            if name not in known:
                raise FeedError(f"unknown output {name!r}; the model has {known}")


def _checked_feeds(feeds: Mapping[str, np.ndarray], inputs: Sequence[PlanTensor]) -> list[np.ndarray]:
    """As `Arguments.arrays`."""
    known = [t.name for t in inputs]
    if not isinstance(feeds, Mapping):
        raise FeedError(
            f"feeds are of type {type(feeds).__name__}; give a dictionary with an array for each of {known}"
        )
    if set(feeds) != set(known):
        given = ", ".join(map(str, sorted(feeds, key=str))) or "no input"
        missing = [name for name in known if name not in feeds]
        none = f" (none is given for {', '.join(missing)})" if missing and len(missing) < len(known) else ""
        raise FeedError(f"the model's inputs are {', '.join(known)}, not {given}{none}; give an array for each of them")
    return [_checked(t, feeds[t.name]) for t in inputs]


def is_empty(feeds: object) -> bool:
    """Whether feeds are a dictionary of nothing."""
    return isinstance(feeds, Mapping) and not feeds


def check_deadline(deadline: float | None) -> None:
    """Checks the deadline of a run.

    Raises:
        UsageError: it is not a number of seconds that can be waited for.
    """
    if deadline is not None and not (isinstance(deadline, Real) and 0 < deadline <= threading.TIMEOUT_MAX):
        raise UsageError(f"the deadline is {deadline!r} s; it must be in (0, {threading.TIMEOUT_MAX:g}]")


def checked_budget(warmup: int, runs: int, budget: float) -> float:
    """`budget` within the range that the engine can count. Checks the numbers of runs too.

    Raises:
        UsageError: something is not a number, or there are too many runs.
    """
    for name, count in (("warmup", warmup), ("runs", runs)):
        if not isinstance(count, Integral) or count > _MOST_RUNS:
            raise UsageError(f"{name} is {count!r}; give a whole number up to {_MOST_RUNS}")
    if not isinstance(budget, Real) or np.isnan(float(budget)):
        raise UsageError(f"budget is {budget!r}; give a number of seconds")
    return max(-1.0, min(float(budget), _LONGEST_BUDGET))


def _checked(tensor: PlanTensor, given: Any) -> np.ndarray:
    """An input's array, contiguous, of its shape and type."""
    try:
        array = np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise FeedError(f"input {tensor.name!r} is no array ({error}); give a numpy array") from error
    if array.shape != tensor.type.shape:
        raise FeedError(
            f"input {tensor.name!r} has shape {list(array.shape)}; the model wants {list(tensor.type.shape)}"
        )
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))  # the same numbers
    if array.dtype.name == tensor.type.dtype:
        array = array.view(tensor.type.element.storage)  # bfloat16 is its bits from here on
    if array.dtype != tensor.type.element.storage:
        raise FeedError(f"input {tensor.name!r} is {array.dtype}; the model wants {tensor.type.dtype}")
    return np.ascontiguousarray(array)
