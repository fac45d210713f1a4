"""The gain of a branched network over its alternatives on a target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nnstretch.bench.timing import Interval, interval, resampled, significant

if TYPE_CHECKING:
    from nnstretch.bench.targets.measure import Measured

_PARTS = 10
"""Parts of the measuring time that are resampled: a disturbance affects successive runs."""


@dataclass(frozen=True)
class Gain:
    """How much faster a branched network is than the fastest alternative.

    Attributes:
        branched, alternative: the two measurements; both have a latency.
        ends: 95 % confidence interval of the gain; None for too few runs.
    """

    branched: Measured
    alternative: Measured
    ends: Interval | None

    @property
    def speedup(self) -> float:
        """The alternative's latency over the branched network's."""
        return _ms(self.alternative) / _ms(self.branched)

    def to_json(self) -> dict[str, Any]:
        """The fields of `bench --json` for a target."""
        return {
            "branched_ms": _ms(self.branched),
            "best_alternative": self.alternative.model.name,
            "best_alternative_ms": _ms(self.alternative),
            "speedup_best_alternative": significant(self.speedup),
            "speedup_best_alternative_interval": None if self.ends is None else [significant(end) for end in self.ends],
        }


def gain_over_alternatives(measured: Sequence[Measured]) -> Gain | None:
    """The gain of the last model over the others; None if it failed, or all of them did."""
    *others, branched = measured
    alternatives = [one for one in others if one.result.p50_ms]
    if not branched.result.p50_ms or not alternatives:
        return None
    best = min(alternatives, key=_ms)
    return Gain(branched, best, _interval(best, branched))


def _ms(measured: Measured) -> float:
    assert measured.result.p50_ms
    return measured.result.p50_ms


def _interval(alternative: Measured, branched: Measured) -> Interval | None:
    """The interval of the ratio, by resampling parts of the measuring time."""
    samples = [np.asarray((one.result.raw or {}).get("samples_ms") or [], float) for one in (alternative, branched)]
    if min(len(found) for found in samples) < 2 * _PARTS:
        return None
    medians = resampled([np.array_split(found / 1e3, _PARTS) for found in samples])
    return interval(medians[0] / medians[1])
