"""Chart of a plan: a row per processor, a bar per step."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.report.charts.style import CLASSES, op_class
from nnstretch.report.charts.svg import WIDTH, Panel, box, label, legend, vertical_grid
from nnstretch.report.tables.text import operator_text, parameters_text
from nnstretch.scheduler.plan.schema import Plan

_LEFT, _ROW, _GAP, _TOP = 110, 40, 12, 28


def steps_panel(plan: Plan, queues: Sequence[str]) -> Panel:
    """Every step as a bar of its predicted time, one after another.

    Args:
        plan: with a predicted time for at least one step.
        queues: the processor of every step.
    """
    names = list(dict.fromkeys(queues))
    totals = {name: sum(s.cost_ms or 0 for s, q in zip(plan.steps, queues, strict=True) if q == name) for name in names}
    longest = max(totals.values())
    scale = (WIDTH - _LEFT - 16) / longest
    bottom = _TOP + len(names) * (_ROW + _GAP)
    parts = vertical_grid(_LEFT, scale, longest, _TOP - 6, bottom - _GAP + 6, bottom + 8, " ms")
    ends = dict.fromkeys(names, 0.0)
    for step, name in zip(plan.steps, queues, strict=True):
        ms = step.cost_ms or 0.0
        y = _TOP + names.index(name) * (_ROW + _GAP)
        tip = f"{step.layer}\n{operator_text(step.op)}, {step.routine} {parameters_text(step.parameters)}\n{ms:.4g} ms"
        parts.append(
            box(_LEFT + ends[name] * scale, y, max(ms * scale - 0.4, 0.3), _ROW, op_class(step.op, step.routine), tip)
        )
        ends[name] += ms
    for name in names:
        y = _TOP + names.index(name) * (_ROW + _GAP)
        parts += [label(0, y + 18, name, "strong"), label(0, y + 33, f"{totals[name]:.3g} ms", "small")]
    used = dict.fromkeys(op_class(step.op, step.routine) for step in plan.steps)
    parts += legend(_LEFT, bottom + 34, [([kind], CLASSES[kind]) for kind in used])
    return bottom + 44, parts
