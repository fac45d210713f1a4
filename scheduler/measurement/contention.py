"""Contention factors: how much longer processors take when they work at the same time.

Processors share memory, caches and power. Each runs a chain of typical convolutions, once alone and once beside the others; the
ratio of the two times is its contention factor.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import REORDER
from nnstretch.passes import optimize
from nnstretch.scheduler.measurement.convolution_chains import convolution_chains
from nnstretch.scheduler.measurement.store.rows import Measurement, Row
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.scheduler.planner import make_plan
from nnstretch.scheduler.runtime.session import PlanSession
from nnstretch.scheduler.runtime.timeline import Timeline

# Output channels and strides of 1x1 convolutions as in residual networks: the first activations exceed a core's own caches, the
# last weights do. More of the largest layers would fit the shared cache for one processor but not for two, which exaggerates
# contention; routines may enlarge the weights of 3x3 convolutions.
_CHAIN = ((256, 1), (512, 2), (512, 1), (1024, 2), (1024, 1))
_JOIN_OPS = frozenset({REORDER, "Concat"})
_IMAGE = (1, 256, 56, 56)
_ROUNDS = 9  # enough for clock steps to hit a minority of rounds
_RUNS = 5


def contention_factors(
    processors: Sequence[Processor], host: Processor, group: Sequence[int], store: ProfileStore
) -> tuple[float, ...]:
    """Contention factor of each processor of a group while the whole group works; 1 or more.

    Measures once per machine and group, and keeps the result in `store`.

    Args:
        processors: all processors.
        host: CPU that serves queue 0 if no CPU is among `processors`.
        group: ascending indices of two processors or more.
        store: profile store.
    """
    known = stored_contention_factors(processors, group, store)
    if known is None:
        ratios = _measured_ratios(processors, host, group)
        found = [Measurement(float(np.median(some)), tuple(map(float, some))) for some in ratios]
        keys = [_row_key(processors, group, number) for number in group]
        store.put_all([Row(*key, one) for key, one in zip(keys, found, strict=True)])
        known = tuple(max(1.0, one.seconds) for one in found if one.seconds is not None)
    return known


def stored_contention_factors(
    processors: Sequence[Processor], group: Sequence[int], store: ProfileStore
) -> tuple[float, ...] | None:
    """Contention factors as in `contention_factors`; None if the store does not have them."""
    found = [store.get(*_row_key(processors, group, number)) for number in group]
    seconds = [one.seconds for one in found if one is not None and one.seconds is not None]
    return tuple(max(1.0, ratio) for ratio in seconds) if len(seconds) == len(group) else None


def _row_key(
    processors: Sequence[Processor], group: Sequence[int], number: int
) -> tuple[str, str, str, dict[str, int]]:
    """Store key of a ratio; it does not depend on the order of the processors."""
    own = processors[number].fingerprint
    others = "+".join(sorted(processors[other].fingerprint for other in group if other != number))
    # Equal processors have equal fingerprints.
    place = sum(processors[other].fingerprint == own for other in group if other < number)
    return own, f"together with {others}", "typical convolutions", {"place": place}


def _measured_ratios(processors: Sequence[Processor], host: Processor, group: Sequence[int]) -> list[list[float]]:
    """For each processor the ratio of its chain's time beside the others to its time alone, one per round."""
    feeds = {"x": np.random.default_rng(0).standard_normal(_IMAGE).astype(np.float32)}
    ratios: list[list[float]] = [[] for _ in group]

    def session(numbers: Sequence[int]) -> PlanSession:
        chains = optimize(convolution_chains(numbers, _CHAIN, _IMAGE, kernel=1))
        return PlanSession.from_compiled(make_plan(chains, processors, host))

    with ExitStack() as stack:
        together, *alone = (stack.enter_context(session(some)) for some in (group, *([number] for number in group)))
        for _ in range(_ROUNDS):
            both, *single = (one.profile(feeds, runs=_RUNS) for one in (together, *alone))
            for found, number, one in zip(ratios, group, single, strict=True):
                name = processors[number].name
                found.append(_convolution_time(both, name) / max(_convolution_time(one, name), 1))
    return ratios


def _convolution_time(timeline: Timeline, processor: str) -> int:
    """Nanoseconds of a processor's convolutions, without the steps that join the chains."""
    queue = timeline.queues.index(processor)
    mine = (e for e in timeline.events if e.queue == queue and e.kind == "step" and e.op not in _JOIN_OPS)
    return sum(e.end - e.begin for e in mine)
