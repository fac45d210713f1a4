"""Integrated profiling: what layers take inside the whole network corrects their unit costs (SoftNeuro, section III-C).

A layer by itself finds its inputs where its measurement left them; in a network they are where the layer before it, on
whichever cores, has put them. So the best path by unit costs is run as a whole, its layers are timed there, and selection is
asked again with these costs in place of theirs. What was not on a path yet counts as much more or less as the layers on it
turned out to. That goes on until the best path holds nothing that was not timed in the network, or for a few seconds.

What disturbs a run makes it longer, never shorter. So a path that takes much longer than what is known of its layers, or in
whose run the core was slow, is run again, in turn with the path before it: what that takes longer than before is the
disturbance. A path that takes much less than what is known of its layers shows that this was measured in a disturbed moment,
and all of it is forgotten. Where nothing but unit costs speaks against a path's times, they are kept, but run again when the
network is tuned the next time, until they were confirmed often enough.
"""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from nnstretch.scheduler.measurement.racing.race import typical
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.planner import ChoiceSpace, plan_of
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.selection import default_selector
from nnstretch.scheduler.selection.choice import Choice
from nnstretch.scheduler.selection.problem import Assignment, Selector

NEAR = 0.1
"""Choices that are so much slower by themselves than the best may be faster inside a network."""

FAR = 0.06
"""Share of what is known of a path that it may take more, or less, before somebody is taken to have been disturbed."""

CONFIRMED = 45
"""Samples of a layer from which on times are believed that are far above unit costs."""

_LEAST_PATHS, _MOST_PATHS = 2, 12
_SECONDS = 5.0
"""After so long no path is begun any more, if there were the fewest."""
_BUDGET = 0.4
"""Seconds in which a path is run, several times at least."""
_FEWEST_RUNS, _MOST_RUNS = 5, 15
_AGAIN = 3
"""How often a path that seems disturbed is run again."""
_MOST_SAMPLES = 90
"""Of a layer, the newest of which are kept."""
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


Samples = tuple[float, ...]
"""Seconds that a layer took in several runs."""


class Records(Protocol):
    """Where times inside networks are kept, and who watches the machine's clock."""

    def inside(self, key: Key) -> Samples:
        """What is known; nothing if empty."""

    def keep_inside(self, found: Mapping[Key, Samples]) -> None:
        """Keeps samples in place of what was known of these keys."""

    def forget_inside(self, keys: Sequence[Key]) -> None:
        """Drops what is known of these keys."""

    def is_slowed(self) -> bool:
        """Whether the core runs far below what it has shown before, just now."""


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
    if len(space.pool.queues) > 1 or not space.costs.measured:
        return space
    return _Refinement(space, records, selector or default_selector(), run or _step_samples).refined()


class _Known:
    """What is known of a space's choices: seconds by themselves, and samples from inside the network."""

    def __init__(self, space: ChoiceSpace, records: Records) -> None:
        self._records = records
        network = _name(space)
        self.keys = [[_key(space, network, n, c) for c in choices] for n, choices in enumerate(space.choices)]
        self._units = {
            key: choice.seconds or 0.0
            for keys, choices in zip(self.keys, space.choices, strict=True)
            for key, choice in zip(keys, choices, strict=True)
            if key is not None
        }
        self._samples = {key: samples for key in self._units if (samples := records.inside(key))}
        self._inside = {key: typical(samples) for key, samples in self._samples.items()}

    def inside(self, key: Key | None) -> float | None:
        """Seconds inside the network, or None."""
        return None if key is None else self._inside.get(key)

    def factor(self) -> float:
        """What layers take in the network over what they take by themselves."""
        if not self._inside:
            return 1.0
        least, most = _TRUSTED
        return min(most, max(least, sum(self._inside.values()) / sum(self._units[key] for key in self._inside)))

    def drift(self, found: Mapping[Key, Samples]) -> float:
        """How many times as long a path took as what is known of its layers.

        Known are times from inside the network, if they are most of the path; else unit costs in proportion. 1 without times.
        """
        taken = {key: typical(samples) for key, samples in found.items()}
        if not taken:
            return 1.0
        common = [key for key in taken if key in self._inside]
        if 2 * sum(taken[key] for key in common) >= sum(taken.values()):
            return sum(taken[key] for key in common) / sum(self._inside[key] for key in common)
        return sum(taken.values()) / (self.factor() * sum(self._units[key] for key in taken))

    def is_confirmed(self, keys: Sequence[Key]) -> bool:
        """Whether a path of these keys need not be run: all are known, and not far above unit costs on thin evidence."""
        if any(key not in self._inside for key in keys):
            return False
        above = sum(self._inside[key] for key in keys) > (1 + FAR) * sum(self._units[key] for key in keys)
        return not above or min(len(self._samples[key]) for key in keys) >= CONFIRMED

    def learn(self, found: Mapping[Key, Samples]) -> bool:
        """Adds what a path took. If it took far less than what was known, that is forgotten: whether it was kept."""
        agrees = self.drift(found) >= 1 - FAR
        if not agrees:
            self._records.forget_inside(list(self._samples))
            self._samples, self._inside = {}, {}
        for key, samples in found.items():
            self._samples[key] = (*self._samples.get(key, ()), *samples)[-_MOST_SAMPLES:]
            self._inside[key] = typical(self._samples[key])
        self._records.keep_inside({key: self._samples[key] for key in found})
        return agrees


class _Refinement:
    def __init__(
        self, space: ChoiceSpace, records: Records, selector: Selector, run: Callable[[Compiled], np.ndarray]
    ) -> None:
        self._space, self._records, self._selector, self._run = space, records, selector, run
        self._known = _Known(space, records)
        self._baseline: Assignment | None = None

    def refined(self) -> ChoiceSpace:
        begin = time.monotonic()
        timed: set[Key] = set()
        for paths in range(_MOST_PATHS):
            space = self._corrected()
            assignment = self._selector.select(space.problem)
            keys = [key for key in self._chosen_keys(assignment) if key is not None]
            settled = timed.issuperset(keys) or self._known.is_confirmed(keys)
            if settled or (paths >= _LEAST_PATHS and time.monotonic() - begin > _SECONDS):
                return space
            found = self._measured(assignment)
            timed = timed | found.keys() if self._known.learn(found) else set(found)
            self._baseline = assignment
        return self._corrected()

    def _chosen_keys(self, assignment: Assignment) -> Iterator[Key | None]:
        return (keys[i] for keys, i in zip(self._known.keys, assignment.choices, strict=True))

    def _corrected(self) -> ChoiceSpace:
        """The space with times from inside where they are known, and others in proportion."""
        factor = self._known.factor()
        choices = [
            [replace(c, seconds=self._known.inside(k) or factor * c.seconds) if c.seconds else c for c, k in pairs]
            for pairs in (
                zip(cs, ks, strict=True) for cs, ks in zip(self._space.choices, self._known.keys, strict=True)
            )
        ]
        return self._space.with_seconds(choices)

    def _measured(self, assignment: Assignment) -> dict[Key, Samples]:
        """Samples of a path's layers; of several runs, if the first seems disturbed, those that least was the matter with.

        Those are in turn with the baseline's: what this takes longer than before is not the path's own.
        """
        path = plan_of(self._space, assignment)
        found = self._sampled(assignment, path)
        baseline = None
        for _ in range(_AGAIN):
            if self._known.drift(found) <= 1 + FAR and not self._records.is_slowed():
                break
            disturbance = 1.0
            if self._baseline is not None:
                baseline = baseline or plan_of(self._space, self._baseline)
                disturbance = max(1.0, self._known.drift(self._sampled(self._baseline, baseline)))
            again = self._sampled(assignment, path)
            again = {key: tuple(s / disturbance for s in samples) for key, samples in again.items()}
            found = min(found, again, key=lambda samples: sum(map(typical, samples.values())))
        return found

    def _sampled(self, assignment: Assignment, compiled: Compiled) -> dict[Key, Samples]:
        """Runs a path; equal layers with equal routines count as one, with their mean."""
        samples = self._run(compiled)
        of_layer: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(samples.shape[1]))
        for step, times in zip(compiled.plan.steps, samples, strict=True):
            of_layer[step.layer] = of_layer[step.layer] + times
        found: dict[Key, list[np.ndarray]] = defaultdict(list)
        chosen = self._space.chosen(assignment)
        for unit, choice, key in zip(self._space.graph.units, chosen, self._chosen_keys(assignment), strict=True):
            name = choice.group.layer.name if choice.group else unit.name
            if key is not None and name in of_layer:
                found[key].append(of_layer[name])
        return {key: tuple(np.mean(times, axis=0)) for key, times in found.items()}


def _name(space: ChoiceSpace) -> str:
    """A digest of a network's workloads in order and the processors that they may run on."""
    texts = [u.layer.workload for u in space.graph.units]
    texts += [p.fingerprint for p in space.pool.processors]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def _key(space: ChoiceSpace, network: str, number: int, choice: Choice) -> Key | None:
    """The key of a unit's choice; None for one that takes no time of its own."""
    layer = choice.group.layer if choice.group else space.graph.units[number].layer
    if choice.routine is None or choice.is_head or not choice.seconds:
        return None
    parameters = tuple(sorted(choice.parameters.items()))
    fingerprint = space.pool.processors[choice.queue].fingerprint
    return Key(network, fingerprint, layer.workload, str(choice.routine.descriptor), parameters)


def _step_samples(compiled: Compiled) -> np.ndarray:
    """Seconds of every step (rows) in several runs (columns)."""
    with PlanSession(compiled) as session:
        (once,) = session.time(warmup=1, runs=1)
        runs = int(min(_MOST_RUNS, max(_FEWEST_RUNS, _BUDGET / once)))
        return session.step_seconds(runs)
