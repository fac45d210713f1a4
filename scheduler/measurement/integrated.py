"""Integrated profiling: times inside the network correct the unit costs of layers (SoftNeuro, section III-C).

A layer by itself finds its inputs where its measurement left them; in a network, where the previous layer put them. So the best
path by unit costs runs as a whole, its layers are timed there, and selection repeats with these times in place of the unit
costs. Unit costs of layers without times are scaled by the ratio of the others, of the same routine's if there are several:
routines differ in how well they hide the way to memory. This repeats until every layer of the best path has been timed in the
network. Unit costs of different layers are measured at different times, so routines that seem a little slower than those of the
best path may be faster; each of them is tried in its layer once. All this ends after a few seconds.

A disturbance makes a run longer, never shorter. So a path that takes much longer than the known times of its layers, or that
ran on a slow core, runs again in alternation with the previous path, whose excess is the disturbance. A path that takes much
less than the known times shows that those were disturbed, and all of them are removed. If only unit costs contradict a path's
times, the times are kept and confirmed in later tunings of the network.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from nnstretch.errors import DeviceError
from nnstretch.scheduler.lowering.choices import Choice
from nnstretch.scheduler.measurement.race import typical
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.planner import ChoiceSpace, plan_of
from nnstretch.scheduler.selection import default_selector
from nnstretch.scheduler.selection.problem import Assignment

NEAR = 0.1
"""Choices whose unit costs exceed the best by up to this share may be faster inside a network."""

FAR = 0.06
"""Largest relative deviation of a path from its known times without a disturbance."""

CONFIRMED = 45
"""Number of samples of a layer that confirms times far above unit costs."""

SECONDS = 5.0
"""Time after which no new path begins, from `_LEAST_PATHS` paths on."""

_LEAST_PATHS, _MOST_PATHS = 2, 12
_AGAIN = 3
"""How often a disturbed path runs again."""
_MOST_SAMPLES = 90
"""Largest number of samples of a layer; the newest are kept."""
_UNTRIED = 0.85
"""Factor of unit costs that lets routines without a time in the network win, so that they are timed too."""
_TRUSTED = (0.8, 1.25)
"""Bounds of the factors that scale unit costs of layers without times in the network."""
_SEVERAL = 3
"""Number of a routine's layers with times from which on it has a factor of its own."""


log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LayerTimeKey:
    """Key of a layer's time inside a network: `network` is a digest, `processor` a fingerprint, `routine` a descriptor."""

    network: str
    processor: str
    workload: str
    routine: str
    parameters: tuple[tuple[str, int], ...]


Samples = tuple[float, ...]
"""Seconds of a layer in several runs."""


class LayerTimes(Protocol):
    """Keeps times of layers inside networks, runs networks, and knows the core's frequency."""

    def layer_samples(self, key: LayerTimeKey) -> Samples:
        """Known samples; empty if there are none."""

    def keep_layer_samples(self, found: Mapping[LayerTimeKey, Samples]) -> None:
        """Replaces the samples of these keys."""

    def forget_layer_samples(self, keys: Sequence[LayerTimeKey]) -> None:
        """Removes the samples of these keys."""

    def is_slowed(self) -> bool:
        """Whether the core's frequency is far below the reference frequency now."""

    def step_seconds(self, compiled: Compiled) -> np.ndarray:
        """Seconds of every step of a plan (rows) in several runs (columns)."""


def refined(
    space: ChoiceSpace,
    times: LayerTimes,
    run: Callable[[Compiled], np.ndarray] | None = None,
    seconds: float = SECONDS,
) -> ChoiceSpace:
    """A space with times from inside the network as costs, if it has one queue and measured costs; otherwise the space itself.

    Args:
        space: has measured unit costs.
        times: keeps the times, so that each is measured once.
        run: plan -> seconds of every step (rows) in several runs (columns); that of `times` by default.
        seconds: time after which no new path begins.
    """
    if len(space.pool.queues) > 1 or not space.costs.measured:
        return space
    return _Refinement(space, times, run or times.step_seconds, seconds).refined()


def with_known_times(space: ChoiceSpace, times: LayerTimes) -> ChoiceSpace:
    """A space with the known times from inside the network as costs; nothing runs. Otherwise as `refined`."""
    if len(space.pool.queues) > 1 or not space.costs.measured:
        return space
    return _Refinement(space, times, times.step_seconds, 0.0).corrected()


class _KnownTimes:
    """Unit costs and known times inside the network of a space's choices."""

    def __init__(self, space: ChoiceSpace, times: LayerTimes) -> None:
        self._times = times
        # A digest of the network's workloads in order and of its processors.
        texts = [*(u.layer.workload for u in space.graph.units), *(p.fingerprint for p in space.pool.processors)]
        network = hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]
        self.keys = [[_key(space, network, n, c) for c in choices] for n, choices in enumerate(space.choices)]
        self._units = {
            key: choice.seconds or 0.0
            for keys, choices in zip(self.keys, space.choices, strict=True)
            for key, choice in zip(keys, choices, strict=True)
            if key is not None
        }
        self._samples = {key: samples for key in self._units if (samples := times.layer_samples(key))}
        self._inside = {key: typical(samples) for key, samples in self._samples.items()}
        self._tried = {(key.workload, key.routine) for key in self._inside}

    def inside(self, key: LayerTimeKey | None) -> float | None:
        """Seconds inside the network; None if unknown."""
        return None if key is None else self._inside.get(key)

    def tried(self, key: LayerTimeKey) -> bool:
        """Whether a setting of the layer's routine has a time inside the network."""
        return (key.workload, key.routine) in self._tried

    def factor(self) -> float:
        """Times inside the network over unit costs, of all layers that have both."""
        return self._ratio(list(self._inside))

    def factors(self) -> dict[str, float]:
        """Routine -> `factor` of its layers, of the routines with several."""
        of_routine: dict[str, list[LayerTimeKey]] = defaultdict(list)
        for key in self._inside:
            of_routine[key.routine].append(key)
        return {routine: self._ratio(keys) for routine, keys in of_routine.items() if len(keys) >= _SEVERAL}

    def _ratio(self, keys: Sequence[LayerTimeKey]) -> float:
        if not keys:
            return 1.0
        least, most = _TRUSTED
        return min(most, max(least, sum(map(self._inside.__getitem__, keys)) / sum(map(self._units.__getitem__, keys))))

    def drift(self, found: Mapping[LayerTimeKey, Samples]) -> float:
        """A path's time over the known time of its layers; 1 without times.

        Known times are those inside the network if they cover most of the path; otherwise scaled unit costs.
        """
        taken = {key: typical(samples) for key, samples in found.items()}
        if not taken:
            return 1.0
        common = [key for key in taken if key in self._inside]
        if 2 * sum(taken[key] for key in common) >= sum(taken.values()):
            return sum(taken[key] for key in common) / sum(self._inside[key] for key in common)
        return sum(taken.values()) / (self.factor() * sum(self._units[key] for key in taken))

    def is_confirmed(self, keys: Sequence[LayerTimeKey]) -> bool:
        """Whether a path needs no run: all its times are known, and those far above unit costs have enough samples."""
        if any(key not in self._inside for key in keys):
            return False
        above = sum(self._inside[key] for key in keys) > (1 + FAR) * sum(self._units[key] for key in keys)
        return not above or min(len(self._samples[key]) for key in keys) >= CONFIRMED

    def learn(self, found: Mapping[LayerTimeKey, Samples]) -> bool:
        """Adds a path's times. Removes all known times if the path took far less; returns whether they were kept."""
        agrees = self.drift(found) >= 1 - FAR
        if not agrees:
            self._times.forget_layer_samples(list(self._samples))
            self._samples, self._inside = {}, {}
        for key, samples in found.items():
            self._samples[key] = (*self._samples.get(key, ()), *samples)[-_MOST_SAMPLES:]
            self._inside[key] = typical(self._samples[key])
        self._tried = {(key.workload, key.routine) for key in self._inside}
        self._times.keep_layer_samples({key: self._samples[key] for key in found})
        return agrees


class _Refinement:
    def __init__(
        self, space: ChoiceSpace, times: LayerTimes, run: Callable[[Compiled], np.ndarray], seconds: float
    ) -> None:
        self._space, self._times, self._run, self._seconds = space, times, run, seconds
        self._known = _KnownTimes(space, times)
        self._baseline: Assignment | None = None

    def refined(self) -> ChoiceSpace:
        begin = time.monotonic()
        timed: set[LayerTimeKey] = set()
        untried = 1.0
        for paths in range(_MOST_PATHS):
            assignment = default_selector().select(self.corrected(untried).problem)
            keys = [key for key in self._chosen_keys(assignment) if key is not None]
            if timed.issuperset(keys) or self._known.is_confirmed(keys):
                if untried < 1:
                    break
                untried = _UNTRIED
                continue
            if paths >= _LEAST_PATHS and time.monotonic() - begin > self._seconds:
                break
            try:
                found = self._measured(assignment)
            except DeviceError as error:
                # Inputs of zeros may be none that an external engine accepts, such as the scales of a Resize.
                if not any(u.is_fallback for u in self._space.graph.units):
                    raise
                log.info("layers are not timed inside the network: %s", error)
                break
            timed = timed | found.keys() if self._known.learn(found) else set(found)
            self._baseline = assignment
        return self.corrected()

    def _chosen_keys(self, assignment: Assignment) -> Iterator[LayerTimeKey | None]:
        return (keys[i] for keys, i in zip(self._known.keys, assignment.choices, strict=True))

    def corrected(self, untried: float = 1.0) -> ChoiceSpace:
        """The space with times inside the network where known, and scaled unit costs elsewhere.

        Args:
            untried: factor of the unit costs of a layer's routine if no setting of it has a time.
        """
        factor, factors = self._known.factor(), self._known.factors()

        def seconds(unit: float, key: LayerTimeKey | None) -> float:
            if key is None:
                return factor * unit
            own = factors.get(key.routine, factor) * (1.0 if self._known.tried(key) else untried)
            return self._known.inside(key) or own * unit

        choices = [
            [replace(c, seconds=seconds(c.seconds, key)) if c.seconds else c for c, key in zip(some, keys, strict=True)]
            for some, keys in zip(self._space.choices, self._known.keys, strict=True)
        ]
        return self._space.with_seconds(choices)

    def _measured(self, assignment: Assignment) -> dict[LayerTimeKey, Samples]:
        """Samples of a path's layers; if they seem disturbed, the fastest of several series.

        Further series alternate with the baseline, the previous path, and are divided by its excess over its known times.
        """
        path = plan_of(self._space, assignment)
        found = self._sampled(assignment, path)
        baseline = None
        for _ in range(_AGAIN):
            if self._known.drift(found) <= 1 + FAR and not self._times.is_slowed():
                break
            disturbance = 1.0
            if self._baseline is not None:
                baseline = baseline or plan_of(self._space, self._baseline)
                disturbance = max(1.0, self._known.drift(self._sampled(self._baseline, baseline)))
            again = self._sampled(assignment, path)
            again = {key: tuple(s / disturbance for s in samples) for key, samples in again.items()}
            found = min(found, again, key=lambda samples: sum(map(typical, samples.values())))
        return found

    def _sampled(self, assignment: Assignment, compiled: Compiled) -> dict[LayerTimeKey, Samples]:
        """Runs a path; equal layers with equal routines count as one layer, with their mean."""
        samples = self._run(compiled)
        of_layer: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(samples.shape[1]))
        for step, times in zip(compiled.plan.steps, samples, strict=True):
            of_layer[step.layer] = of_layer[step.layer] + times
        found: dict[LayerTimeKey, list[np.ndarray]] = defaultdict(list)
        chosen = self._space.chosen(assignment)
        for unit, choice, key in zip(self._space.graph.units, chosen, self._chosen_keys(assignment), strict=True):
            name = choice.group.layer.name if choice.group else unit.name
            if key is not None and name in of_layer:
                found[key].append(of_layer[name])
        return {key: tuple(np.mean(times, axis=0)) for key, times in found.items()}


def _key(space: ChoiceSpace, network: str, number: int, choice: Choice) -> LayerTimeKey | None:
    """The key of a unit's choice; None if the choice takes no time of its own."""
    layer = choice.group.layer if choice.group else space.graph.units[number].layer
    if choice.routine is None or choice.is_head or not choice.seconds:
        return None
    parameters = tuple(sorted(choice.parameters.items()))
    fingerprint = space.pool.processors[choice.queue].fingerprint
    return LayerTimeKey(network, fingerprint, layer.workload, str(choice.routine.descriptor), parameters)
