"""Limits of designs, which are known before anything is measured: what a design reaches of each, and how far it is off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nnstretch.branching.design.from_choices import choices_of
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.limits import SearchLimits
from nnstretch.branching.search.network_latency import states_before
from nnstretch.support.words import counted
from nnstretch.sweeps.objectives import Values
from nnstretch.sweeps.space import PredictedDesign

_ROUNDING = 1e-9
_UNBRANCHED = -1.0  # a segment limit of a design without branches: as far within it as can be
_OF_SEGMENTS = ("alpha", "beta", "min_macs")
_WHOLE = ("latency", "memory", "macs")  # the fields of `Bounds`


@dataclass(frozen=True)
class Bounds:
    """Limits of a whole design; None: no limit.

    Attributes:
        latency: predicted milliseconds, at most.
        memory: predicted MiB, at most.
        macs: millions of multiply-accumulates, at most.
    """

    latency: float | None = None
    memory: float | None = None
    macs: float | None = None


def reached(predicted: PredictedDesign, values: Values, bounds: Bounds) -> dict[str, float]:
    """What a design reaches of every limit that it has, by the limit's name.

    `alpha`, `beta` and `min_macs` are those of the worst branched segment, as the analytic search computes them; the others are
    predicted values of the whole design.
    """
    found: dict[str, float] = {}
    latencies, choices = predicted.latencies, choices_of(predicted.design)
    states = states_before(latencies, choices)
    for choice, segment in zip(choices, predicted.design.segments, strict=True):
        fastest = min(latencies.original(choice.segment))
        if len(choice.branches) < 2 or not fastest:
            continue
        group = [branch.processor for branch in choice.branches]
        state = states[latencies.blueprint.boundary(choice.segment.first)]
        both = (tuple(sorted(set(group))),) * 2
        costs = [latencies.branch(choice.segment, b, state.channels, exact=state.exact) for b in choice.branches]
        factors = [latencies.contention_factor(choice.segment, processor, group) for processor in group]
        slowest = max(cost.seconds * factor for cost, factor in zip(costs, factors, strict=True))
        meeting = latencies.meeting(
            choice.segment.stop, _merged(latencies, [branch.channels for branch in segment.branches]), *both
        )
        macs = sum(cost.macs for cost in costs) / max(latencies.original_macs(choice.segment), 1)
        found["alpha"] = max(found.get("alpha", 0.0), meeting / fastest)
        found["beta"] = max(found.get("beta", 0.0), slowest / fastest)
        found["min_macs"] = min(found.get("min_macs", macs), macs)
    found |= {name: values[name] for name in _WHOLE if getattr(bounds, name) is not None}
    return found


def _merged(latencies: LatencyTable, channels: Sequence[int]) -> int:
    from nnstretch.branching.transform.merge import merged_channels

    return merged_channels(latencies.blueprint.merge, channels)


def violations(found: Mapping[str, float], limits: SearchLimits, bounds: Bounds) -> dict[str, float]:
    """How far a design is beyond every limit, as a share of the limit; 0 or less is within it.

    The limits are the same for all designs of a study, as samplers want them. A design without branches is within those of
    segments.
    """
    result = dict.fromkeys(
        (*_OF_SEGMENTS, *(name for name in _WHOLE if getattr(bounds, name) is not None)), _UNBRANCHED
    )
    for name, value in found.items():
        limit = getattr(bounds if name in _WHOLE else limits, name)
        excess = limit - value if name == "min_macs" else value - limit
        result[name] = excess / max(abs(limit), _ROUNDING) - _ROUNDING
    return result


def limits_reached(all_reached: Sequence[Mapping[str, float]], limits: SearchLimits, bounds: Bounds) -> str:
    """The message for a study in which no design is within all limits: the best that was reached of each that none met.

    Args:
        all_reached: what every design reached (`reached`).
        limits: of the study's segments.
        bounds: of its designs.
    """
    parts = []
    for name in (*_OF_SEGMENTS, *_WHOLE):
        values = [found[name] for found in all_reached if name in found]
        if not values or any(violations({name: value}, limits, bounds)[name] <= 0 for value in values):
            continue
        limit = getattr(bounds if name in _WHOLE else limits, name)
        best = max(values) if name == "min_macs" else min(values)
        parts.append(
            f"{name} is to be {'at least' if name == 'min_macs' else 'at most'} {limit:g}, the best is {best:.4g}"
        )
    reason = "; ".join(parts) or "each limit is met by some design, and all limits together by none"
    return f"{counted(len(all_reached), 'design')} tried: {reason}; change these limits, or run more trials"
