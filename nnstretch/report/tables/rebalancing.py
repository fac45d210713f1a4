"""Rebalancing as text and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from nnstretch.report.tables.text import ms_text, plain_table
from nnstretch.support.words import counted

if TYPE_CHECKING:
    from rich.table import Table

    from nnstretch.scheduler.plan.rebalanced import Move, RebalanceReport, RebalanceRound

_SHOWN = 2
"""Moved layers that a line names."""


def rebalancing_text(found: RebalanceReport, processors: Sequence[str]) -> list[str]:
    """A line per round, and one on the plan that is kept and on waiting at joins.

    Args:
        found: by the rebalancing.
        processors: that compute layers of the plan that is kept.
    """
    lines = [_round_text(number, one) for number, one in enumerate(found.rounds, 1)]
    before, waited = ms_text(found.before * 1e3), ms_text(found.waiting_before * 1e3)
    if found.interval is None:
        why = "no plan is predicted to be faster" if not found.rounds else "no other plan ran clearly faster"
        others = (
            f"processors wait {waited} ms for each other"
            if len(processors) > 1
            else f"everything runs on {''.join(processors) or 'the host'}"
        )
        last = f"rebalanced: {why}, so the plan stays as it is ({before} ms); {others}"
    else:
        last = (
            f"rebalanced: {before} ms before, {ms_text(found.after * 1e3)} ms now, "
            f"{_ratio_text(found.ratio, found.interval)}; processors waited {waited} ms for each other, and "
            f"{ms_text(found.waiting_after * 1e3)} ms now"
        )
    return [*lines, last]


def _round_text(number: int, one: RebalanceRound) -> str:
    verdict = "faster" if one.kept else "not clearly faster"
    return (
        f"round {number}: predicted {ms_text(one.predicted * 1e3)} ms, measured {ms_text(one.measured * 1e3)} ms beside "
        f"{ms_text(one.best * 1e3)} ms, {_ratio_text(one.ratio, one.interval)}: {verdict}; {_moved_text(one.moved)}"
    )


def _ratio_text(ratio: float, interval: Sequence[float]) -> str:
    low, high = interval
    return f"a ratio of {ratio:.3f} (95 % interval {low:.3f} to {high:.3f})"


def _moved_text(moved: Sequence[Move]) -> str:
    if not moved:
        return "the same layers everywhere, in another order or by other routines"
    named = ", ".join(f"{one.layer} from {one.before} to {one.after}" for one in moved[:_SHOWN])
    return f"{counted(len(moved), 'layer')} moved: {named}{', …' if len(moved) > _SHOWN else ''}"


def measured_again_table(plans: Mapping[str, Mapping[str, float | None]]) -> Table:
    """A line per plan with its latency on such a machine before, where the package had it, and now."""
    table = plain_table("plan", ">before ms", ">now ms")
    for name, times in plans.items():
        table.add_row(name, *("–" if ms is None else f"{ms:.3f}" for ms in (times["before_ms"], times["after_ms"])))
    return table
