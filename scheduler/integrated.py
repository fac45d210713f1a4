"""Integrated profiling: what layers take inside the whole network corrects their unit costs (SoftNeuro, section III-C).

A layer by itself finds its inputs where its measurement left them; in a network they are where the layer before it, on
whichever cores, has put them. So the best path by unit costs is run as a whole, its layers are timed there, and selection is
asked again with these costs in place of theirs. What was not on a path yet counts as much more or less as the layers on it
turned out to. That goes on until the best path holds nothing that was not timed in the network, or for a few seconds.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from nnstretch.scheduler.candidates import LanePool
from nnstretch.scheduler.compiled import Compiled
from nnstretch.scheduler.draft import Choice
from nnstretch.scheduler.problem import Assignment, Problem, Selector
from nnstretch.scheduler.session import Session
from nnstretch.scheduler.units import UnitGraph

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


@dataclass(frozen=True, eq=False)
class Network:
    """A network whose path is to be refined.

    Attributes:
        graph: its units.
        choices: of every unit, with unit costs.
        pool: the lanes; all on the host.
        problem: by unit costs.
    """

    graph: UnitGraph
    choices: Sequence[Sequence[Choice]]
    pool: LanePool
    problem: Problem

    def name(self) -> str:
        """A digest of all workloads in order and the processors that they may run on."""
        texts = [u.layer.workload for u in self.graph.units]
        texts += [p.fingerprint for p in self.pool.processors]
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]

    def key(self, network: str, number: int, choice: Choice) -> Key | None:
        """The key of a unit's choice; None for one that takes no time of its own."""
        layer = choice.run.layer if choice.run else self.graph.units[number].layer
        if choice.routine is None or choice.is_head or not choice.seconds:
            return None
        parameters = tuple(sorted(choice.parameters.items()))
        fingerprint = self.pool.processors[choice.lane].fingerprint
        return Key(network, fingerprint, layer.workload, str(choice.routine.descriptor), parameters)


class Refinement:
    """Selection with costs from inside the network."""

    def __init__(
        self,
        network: Network,
        records: Records,
        selector: Selector,
        build: Callable[[Sequence[Choice]], Compiled],
        run: Callable[[Compiled], np.ndarray] | None = None,
    ) -> None:
        """Measures nothing yet.

        Args:
            network: what is to be refined.
            records: keep what is measured, so that it is measured once.
            selector: selects paths.
            build: makes a plan of one choice per unit.
            run: seconds of every step of a plan (rows) in several runs (columns), by default as a session takes.
        """
        self._network, self._records, self._selector = network, records, selector
        self._build, self._run = build, run or _step_samples
        name = network.name()
        self._keys = [[network.key(name, n, c) for c in choices] for n, choices in enumerate(network.choices)]

    def select(self) -> tuple[Assignment, list[Choice]]:
        """The best path, and its choices with their seconds inside the network."""
        begin = time.monotonic()
        for paths in itertools.count():
            assignment = self._selector.select(self._corrected())
            known = all(key is None or self._records.inside(key) is not None for key in self._chosen_keys(assignment))
            late = paths >= _LEAST_PATHS and time.monotonic() - begin > _SECONDS
            if known or late or paths == _MOST_PATHS:
                return assignment, self._choices(assignment)
            self._measure(assignment)
        raise AssertionError("an endless loop has ended")

    def _chosen_keys(self, assignment: Assignment) -> Iterator[Key | None]:
        return (keys[i] for keys, i in zip(self._keys, assignment.choices, strict=True))

    def _choices(self, assignment: Assignment) -> list[Choice]:
        chosen = [cs[i] for cs, i in zip(self._network.choices, assignment.choices, strict=True)]
        seconds = [self._records.inside(key) if key else None for key in self._chosen_keys(assignment)]
        return [c if s is None else replace(c, seconds=s) for c, s in zip(chosen, seconds, strict=True)]

    def _corrected(self) -> Problem:
        """The problem with times from inside where they are known, and others in proportion."""
        inside = [[self._records.inside(key) if key else None for key in keys] for keys in self._keys]
        factor = self._factor(inside)
        costs = []
        for node, choices, known in zip(self._network.problem.costs, self._network.choices, inside, strict=True):
            change = [
                (factor * (c.seconds or 0.0) if k is None else k) - (c.seconds or 0.0)
                for c, k in zip(choices, known, strict=True)
            ]
            costs.append(node + np.array(change))
        return replace(self._network.problem, costs=tuple(costs))

    def _factor(self, inside: Sequence[Sequence[float | None]]) -> float:
        """What layers take in the network over what they take by themselves."""
        pairs = [
            (k, c.seconds)
            for choices, known in zip(self._network.choices, inside, strict=True)
            for c, k in zip(choices, known, strict=True)
            if k is not None and c.seconds
        ]
        if not pairs:
            return 1.0
        least, most = _TRUSTED
        return min(most, max(least, sum(k for k, _ in pairs) / sum(s for _, s in pairs)))

    def _measure(self, assignment: Assignment) -> None:
        chosen = [cs[i] for cs, i in zip(self._network.choices, assignment.choices, strict=True)]
        compiled = self._build(chosen)
        samples = self._run(compiled)
        of_layer: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(samples.shape[1]))
        for step, times in zip(compiled.plan.steps, samples, strict=True):
            of_layer[step.layer] = of_layer[step.layer] + times
        found: dict[Key, list[np.ndarray]] = defaultdict(list)
        for unit, choice, key in zip(self._network.graph.units, chosen, self._chosen_keys(assignment), strict=True):
            name = choice.run.layer.name if choice.run else unit.name
            if key is not None and name in of_layer:
                found[key].append(of_layer[name])
        self._records.keep_inside({key: tuple(np.mean(times, axis=0)) for key, times in found.items()})


def _step_samples(compiled: Compiled) -> np.ndarray:
    """Seconds of every step (rows) in several runs (columns)."""
    with Session(compiled) as session:
        (once,) = session.time(warmup=1, runs=1)
        runs = int(min(_MOST_RUNS, max(_FEWEST_RUNS, _BUDGET / once)))
        return session.step_seconds(runs)
