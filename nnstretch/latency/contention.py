"""How much processors slow each other down: a chain of typical layers on each, at the same time and by itself.

Processors share memory, caches and power, so that a branch takes longer beside others than alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack

import numpy as np

from nnstretch.compiler.compile import compile_model
from nnstretch.compiler.processors import Processors
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import REORDER
from nnstretch.latency.convolution_chains import convolution_chains
from nnstretch.scheduler.measurement.store.rows import Measurement, Row
from nnstretch.scheduler.measurement.store.store import ProfileStore
from nnstretch.scheduler.runtime.timeline import Timeline

# Output channels and stride of 1x1 convolutions, as residual networks have them: first the maps outgrow a core's own caches,
# then the weights do. More of these one would keep in a large shared cache alone, and two would not, although the layers of a
# network go through as many either way; 3x3 convolutions may have theirs blown up by the routines.
_CHAIN = ((256, 1), (512, 2), (512, 1), (1024, 2), (1024, 1))
_MEETING = frozenset({REORDER, "Concat"})
_IMAGE = (1, 256, 56, 56)
_ROUNDS = 9  # so many that clocks, which step now and then, are alike in most
_RUNS = 5


def contention_factors(processors: Processors, group: Sequence[int], store: ProfileStore) -> tuple[float, ...]:
    """How many times as long each processor of `group` takes while the others of it work too; 1 or more.

    Measured once per machine and group, and remembered in `store`.

    Args:
        processors: what there is.
        group: numbers of two processors or more, ascending.
        store: of measurements.
    """
    known = stored_contention_factors(processors.named, group, store)
    if known is None:
        found = [Measurement(float(np.median(some)), tuple(map(float, some))) for some in _measured(processors, group)]
        keys = [_row_key(processors.named, group, number) for number in group]
        store.put_all([Row(*key, one) for key, one in zip(keys, found, strict=True)])
        known = tuple(max(1.0, one.seconds) for one in found if one.seconds is not None)
    return known


def stored_contention_factors(
    processors: Sequence[Processor], group: Sequence[int], store: ProfileStore
) -> tuple[float, ...] | None:
    """As `contention_factors`, but None if they are not in the store."""
    found = [store.get(*_row_key(processors, group, number)) for number in group]
    seconds = [one.seconds for one in found if one is not None and one.seconds is not None]
    return tuple(max(1.0, ratio) for ratio in seconds) if len(seconds) == len(group) else None


def _row_key(
    processors: Sequence[Processor], group: Sequence[int], number: int
) -> tuple[str, str, str, dict[str, int]]:
    """Where a ratio is kept: under the same key in whatever order the processors are named."""
    own = processors[number].fingerprint
    others = "+".join(sorted(processors[other].fingerprint for other in group if other != number))
    # Equal processors have equal fingerprints.
    place = sum(processors[other].fingerprint == own for other in group if other < number)
    return own, f"together with {others}", "typical convolutions", {"place": place}


def _measured(processors: Processors, group: Sequence[int]) -> list[list[float]]:
    """Ratios of the time that each processor spent on its chain, together over by itself, by round."""
    feeds = {"x": np.random.default_rng(0).standard_normal(_IMAGE).astype(np.float32)}
    ratios: list[list[float]] = [[] for _ in group]
    with ExitStack() as stack:
        together, *alone = (
            stack.enter_context(
                compile_model(convolution_chains(some, _CHAIN, _IMAGE, kernel=1), processors, tune=False)
            )
            for some in (group, *([number] for number in group))
        )
        for _ in range(_ROUNDS):
            both, *single = (session.profile(feeds, runs=_RUNS) for session in (together, *alone))
            for found, number, one in zip(ratios, group, single, strict=True):
                name = processors.named[number].name
                found.append(_convolving(both, name) / max(_convolving(one, name), 1))
    return ratios


def _convolving(timeline: Timeline, processor: str) -> int:
    """Nanoseconds of convolutions on a processor: all but what brings the chains together, and reads what others have."""
    queue = timeline.queues.index(processor)
    mine = (e for e in timeline.events if e.queue == queue and e.kind == "step" and e.op not in _MEETING)
    return sum(e.end - e.begin for e in mine)
