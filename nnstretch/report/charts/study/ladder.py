"""Chart of fidelities: a bar of trials per fidelity, by what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nnstretch.report.charts.svg import WIDTH, Panel, box, label, legend

_NAMES, _BAR, _ROW = 110, 22, 34


@dataclass(frozen=True)
class Rung:
    """A fidelity.

    Attributes:
        name: of the fidelity.
        trials: that reached it.
        promoted: those that went on.
        pruned: those that ended there because others were better.
        infeasible: those that ended there because they are beyond a limit.
    """

    name: str
    trials: int
    promoted: int
    pruned: int
    infeasible: int


def ladder_panel(rungs: Sequence[Rung]) -> Panel:
    """Bars from the left: promoted or complete trials, pruned ones, and those beyond a limit.

    Args:
        rungs: cheapest first; at least one trial reached the first.
    """
    scale = (WIDTH - _NAMES - 90) / max(rung.trials for rung in rungs)
    parts: list[str] = []
    for number, rung in enumerate(rungs):
        y = 10 + number * _ROW
        parts.append(label(_NAMES - 12, y + 15, rung.name, "label", "end"))
        rest = rung.trials - rung.promoted - rung.pruned - rung.infeasible
        shares = (
            (rung.promoted, "conv", "promoted"),
            (rest, "elementwise", "ended here"),
            (rung.pruned, "quiet", "pruned"),
            (rung.infeasible, "accent-soft", "beyond a limit"),
        )
        x = float(_NAMES)
        for count, class_, name in shares:
            if count:
                parts.append(box(x, y, count * scale - 1, _BAR, class_, f"{rung.name}: {count} {name}"))
                x += count * scale
        parts.append(label(x + 7, y + 15, str(rung.trials), "label"))
    bottom = 10 + len(rungs) * _ROW
    entries = (
        (["conv"], "promoted"),
        (["elementwise"], "complete, failed or running"),
        (["quiet"], "pruned"),
        (["accent-soft"], "beyond a limit"),
    )
    return bottom + 24, [*parts, *legend(_NAMES, bottom + 14, entries)]
