"""Integrated profiling: what layers take inside the whole network corrects their unit costs (SoftNeuro, section III-C).

A layer by itself finds its inputs where its measurement left them; in a network they are where the layer before it, on
whichever cores, has put them. So the best path by unit costs is run as a whole, its layers are timed there, and selection is
asked again with these costs in place of theirs. What was not on a path yet counts as much more or less as the layers on it
turned out to. That goes on until the best path holds nothing that was not timed in the network, or for a few seconds.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from nnstretch.scheduler.compiled import Compiled
from nnstretch.scheduler.draft import Choice
from nnstretch.scheduler.planner import ChoiceSpace, plan_of
from nnstretch.scheduler.problem import Assignment, Selector
from nnstretch.scheduler.selectors import default_selector
from nnstretch.scheduler.session import Session

NEAR = 0.1
"""Choices that are so much slower by themselves than the best may be faster inside a network."""

_LEAST_PATHS, _MOST_PATHS = 2, 12
_SECONDS = 5.0
"""After so long no path is begun any more, if there were the fewest."""
_BUDGET = 0.4
"""Seconds in which a path is run, several times at least."""
_FEWEST_RUNS, _MOST_RUNS = 5, 15
_TRUSTED = (0.8, 1.25)
"""How much more or less than by themselves layers can be believed to take in a network that they were not timed in."""


@dataclass(frozen=True)
class Key:
    """What a time inside a network is known by: `network` names it, `processor` is a fingerprint, `routine` a descriptor."""

    network: str
    processor: str
    workload: str
    routine: str
    parameters: tuple[tuple[str, int], ...]


class Records(Protocol):
    """Where times inside networks are kept."""

    def inside(self, key: Key) -> float | None:
        """Seconds that are known, or None."""

    def keep_inside(self, found: Mapping[Key, tuple[float, ...]]) -> None:
        """Keeps the samples of one path's layers, seconds."""


def refined(
    space: ChoiceSpace,
    records: Records,
    selector: Selector | None = None,
    run: Callable[[Compiled], np.ndarray] | None = None,
) -> ChoiceSpace:
    """`space` with costs from inside the network, if all of it runs on one CPU; else as it is.

    Args:
        space: with measured unit costs.
        records: keep what is measured, so that it is measured once.
        selector: selects the paths that are measured; `default_selector` if None.
        run: seconds of every step of a plan (rows) in several runs (columns), by default as a session takes.
    """
    if len(space.pool.lanes) > 1 or not space.costs.measured:
        return space
    return _Refinement(space, records, selector or default_selector(), run or _step_samples).refined()


class _Refinement:
    def __init__(
        self, space: ChoiceSpace, records: Records, selector: Selector, run: Callable[[Compiled], np.ndarray]
    ) -> None:
        self._space, self._records, self._selector, self._run = space, records, selector, run
        network = _name(space)
        self._keys = [[_key(space, network, n, c) for c in choices] for n, choices in enumerate(space.choices)]

    def refined(self) -> ChoiceSpace:
        begin = time.monotonic()
        for paths in range(_MOST_PATHS):
            space = self._corrected()
            assignment = self._selector.select(space.problem)
            known = all(key is None or self._records.inside(key) is not None for key in self._chosen_keys(assignment))
            if known or (paths >= _LEAST_PATHS and time.monotonic() - begin > _SECONDS):
                return space
            self._measure(assignment)
        return self._corrected()

    def _chosen_keys(self, assignment: Assignment) -> Iterator[Key | None]:
        return (keys[i] for keys, i in zip(self._keys, assignment.choices, strict=True))

    def _corrected(self) -> ChoiceSpace:
        """The space with times from inside where they are known, and others in proportion."""
        inside = [[self._records.inside(key) if key else None for key in keys] for keys in self._keys]
        factor = self._factor(inside)
        choices = [
            [replace(c, seconds=k or factor * c.seconds) if c.seconds else c for c, k in zip(cs, known, strict=True)]
            for cs, known in zip(self._space.choices, inside, strict=True)
        ]
        costs = tuple(
            node
            + np.array([(new.seconds or 0.0) - (old.seconds or 0.0) for new, old in zip(after, before, strict=True)])
            for node, after, before in zip(self._space.problem.costs, choices, self._space.choices, strict=True)
        )
        return replace(self._space, choices=choices, problem=replace(self._space.problem, costs=costs))

    def _factor(self, inside: Sequence[Sequence[float | None]]) -> float:
        """What layers take in the network over what they take by themselves."""
        pairs = [
            (k, c.seconds)
            for choices, known in zip(self._space.choices, inside, strict=True)
            for c, k in zip(choices, known, strict=True)
            if k is not None and c.seconds
        ]
        if not pairs:
            return 1.0
        least, most = _TRUSTED
        return min(most, max(least, sum(k for k, _ in pairs) / sum(s for _, s in pairs)))

    def _measure(self, assignment: Assignment) -> None:
        """Runs the path and keeps what its layers took; equal layers with equal routines count as one, with their mean."""
        compiled = plan_of(self._space, assignment)
        samples = self._run(compiled)
        of_layer: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(samples.shape[1]))
        for step, times in zip(compiled.plan.steps, samples, strict=True):
            of_layer[step.layer] = of_layer[step.layer] + times
        found: dict[Key, list[np.ndarray]] = defaultdict(list)
        for number, key in enumerate(self._chosen_keys(assignment)):
            choice = self._space.choices[number][assignment.choices[number]]
            name = choice.run.layer.name if choice.run else self._space.graph.units[number].name
            if key is not None and name in of_layer:
                found[key].append(of_layer[name])
        self._records.keep_inside({key: tuple(np.mean(times, axis=0)) for key, times in found.items()})


def _name(space: ChoiceSpace) -> str:
    """A digest of a network's workloads in order and the processors that they may run on."""
    texts = [u.layer.workload for u in space.graph.units]
    texts += [p.fingerprint for p in space.pool.processors]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _key(space: ChoiceSpace, network: str, number: int, choice: Choice) -> Key | None:
    """The key of a unit's choice; None for one that takes no time of its own."""
    layer = choice.run.layer if choice.run else space.graph.units[number].layer
    if choice.routine is None or choice.is_head or not choice.seconds:
        return None
    parameters = tuple(sorted(choice.parameters.items()))
    fingerprint = space.pool.processors[choice.lane].fingerprint
    return Key(network, fingerprint, layer.workload, str(choice.routine.descriptor), parameters)


def _step_samples(compiled: Compiled) -> np.ndarray:
    """Seconds of every step (rows) in several runs (columns)."""
    with Session(compiled) as session:
        (once,) = session.time(warmup=1, runs=1)
        runs = int(min(_MOST_RUNS, max(_FEWEST_RUNS, _BUDGET / once)))
        return session.step_seconds(runs)
