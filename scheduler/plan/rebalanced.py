"""Reports of rebalancing: what was shared out again, and what that gained."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nnstretch.scheduler.plan.parts import part_size, whole_name

if TYPE_CHECKING:
    from nnstretch.scheduler.plan.schema import Plan

_MOVEMENTS = frozenset({"Reorder", "Slice", "Concat"})
"""Operators of steps that follow from where other layers are."""


@dataclass(frozen=True)
class Move:
    """A layer that another plan computes elsewhere; `before` and `after` say where, as in "40 on cpu:0 + 24 on opencl:0@1"."""

    layer: str
    before: str
    after: str


@dataclass(frozen=True)
class RebalanceRound:
    """One plan that was made from the times of those before it, and ran.

    Attributes:
        predicted: seconds by these times.
        measured: seconds of a run, median.
        best: seconds of the best plan before it, in the same rounds of the measurement.
        ratio: of these two, round by round.
        interval: of the ratio, 95 %.
        moved: the layers that it computes elsewhere than that plan.
        kept: whether it is the best plan now.
    """

    predicted: float
    measured: float
    best: float
    ratio: float
    interval: tuple[float, float]
    moved: tuple[Move, ...]
    kept: bool


@dataclass(frozen=True)
class RebalanceReport:
    """The plan that was there before rebalancing beside the one that ran fastest, which may be the same.

    Attributes:
        rounds: one per plan that ran.
        before: seconds of a run of the first plan, median.
        after: seconds of the one that is kept.
        ratio: after / before; 1 if the first plan is kept.
        interval: of the ratio, 95 %; None if the first plan is kept.
        waiting_before: seconds of a run of the first plan in which a processor had nothing to do while another one computed,
            summed over the processors; median.
        waiting_after: the same of the plan that is kept.
        moved: the layers that this one computes elsewhere.
    """

    rounds: tuple[RebalanceRound, ...]
    before: float
    after: float
    ratio: float
    interval: tuple[float, float] | None
    waiting_before: float
    waiting_after: float
    moved: tuple[Move, ...]

    def to_json(self) -> dict[str, Any]:
        """The value of `rebalance` in the answers of commands."""
        return {
            "rounds": [_round_json(one) for one in self.rounds],
            "before_ms": _rounded(self.before * 1e3),
            "after_ms": _rounded(self.after * 1e3),
            "ratio": _rounded(self.ratio),
            "ratio_interval": None if self.interval is None else [_rounded(end) for end in self.interval],
            "waiting_before_ms": _rounded(self.waiting_before * 1e3),
            "waiting_after_ms": _rounded(self.waiting_after * 1e3),
            "moved": _moves_json(self.moved),
        }


def moves(before: Plan, after: Plan) -> tuple[Move, ...]:
    """The layers that a plan computes elsewhere than another plan of the same network, in its order."""
    there, here = _places(before), _places(after)
    # Of other fusion groups nothing is known in the other plan.
    both = (layer for layer in here if layer in there)
    return tuple(Move(layer, there[layer], here[layer]) for layer in both if there[layer] != here[layer])


def computing_processors(plan: Plan) -> tuple[str, ...]:
    """Names of the processors that compute layers; one that only changes layouts or moves data does not count."""
    queues = dict.fromkeys(queue for _, _, queue in _parts(plan))
    return tuple(plan.queues[queue].processor for queue in sorted(queues) if plan.queues[queue].processor)


def _places(plan: Plan) -> dict[str, str]:
    """Where every layer is computed: a processor, or the channels or rows of each."""
    found: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for layer, part, queue in sorted(set(_parts(plan)), key=lambda one: one[2]):
        found[layer][plan.queues[queue].processor or "host"] += part
    order = dict.fromkeys(whole_name(step.layer) for step in plan.steps)
    return {layer: _place(found[layer]) for layer in order if layer in found}


def _parts(plan: Plan) -> Iterator[tuple[str, int, int]]:
    """Layer, number of channels or rows (0: all) and queue of the steps that compute layers."""
    for step, queue in zip(plan.steps, plan.step_queues, strict=True):
        if step.op not in _MOVEMENTS:
            yield whole_name(step.layer), part_size(step.layer), queue


def _place(shares: Mapping[str, int]) -> str:
    return " + ".join(f"{size} on {name}" if size else name for name, size in shares.items())


def _round_json(one: RebalanceRound) -> dict[str, Any]:
    return {
        "predicted_ms": _rounded(one.predicted * 1e3),
        "measured_ms": _rounded(one.measured * 1e3),
        "best_ms": _rounded(one.best * 1e3),
        "ratio": _rounded(one.ratio),
        "ratio_interval": [_rounded(end) for end in one.interval],
        "kept": one.kept,
        "moved": _moves_json(one.moved),
    }


def _moves_json(moved: tuple[Move, ...]) -> list[dict[str, str]]:
    return [{"layer": one.layer, "before": one.before, "after": one.after} for one in moved]


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
