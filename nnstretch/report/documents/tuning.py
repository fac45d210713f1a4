"""Answers of `tune`: what the routines of every layer took, which were chosen and by how much, and which failed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nnstretch.report.charts.bars import Bar, bars_panel
from nnstretch.report.charts.selection import front_panel, search_panel
from nnstretch.report.charts.style import CLASSES, op_class
from nnstretch.report.charts.svg import Panel
from nnstretch.report.documents.document import Cell, Document, Section, Table
from nnstretch.report.tables.selection import (
    accuracy_text,
    choice_text,
    comparison_rows,
    difference_text,
    dtypes_text,
    front_rows,
    front_titles,
)
from nnstretch.report.tables.text import operator_text, parameters_text, sentence

Answer = Mapping[str, Any]
"""The object that `tune --json` prints, or an object in it. A field that is missing raises KeyError."""

_MOST_BARS = 24
_NEAR = 2.0
"""Times the chosen routine's time up to which the chart shows the fastest other routine."""
_PER_CENT = 100.0

_BARS = (
    "The longest steps, in the order of the network. A bar is the time of the chosen routine; where its whisker reaches "
    f"farther, it ends at that of the fastest other routine, if this takes at most {_NEAR:g} times as long. A bar's "
    "tooltip has both."
)
_LAYERS = (
    "Steps of the plan in their order, layout changes included. “next best” is the layer's fastest other routine, with "
    "the best of its settings, and “× as long” its time over the chosen one's. Below 1, the layout changes that it needs "
    "would cost more than it saves, or the chosen routine, which was timed inside the network, is slower there than "
    "alone, as the others were timed. Errors are the largest ones against ONNX Runtime, relative to the output's range. "
    "Parameters stand with the candidates."
)
_CANDIDATES = (
    "Each layer's routines by layouts, each with its best parameters, fastest first; the chosen one is marked. All were "
    "timed alone but for the chosen one, if it was timed inside the network: it may be slower there. “adapts” "
    "is the time of the layout changes that its inputs need. “greedy loses” is the least increase of the whole network's "
    "latency if the layer took its own fastest routine."
)
_FAILURES = (
    "Routines that are refused, give a wrong answer, or end the process that measures them are never chosen. The reason "
    "is that of the first setting that failed."
)
_SELECTORS = (
    "Random search and Q-learning try one assignment after another; dots are episodes, lines the best so far. The other "
    "selectors give one answer (dashed). Predicted latency is the sum of measured routines and layout changes."
)
_FRONT = (
    "No assignment of routines is better than one of these in every objective. Memory counts prepared weights and "
    "workspaces. A dot's tooltip shows its values; a limit such as --limit memory=200MB selects the fastest plan within "
    "it."
)


def tuning_document(name: str, answer: Answer) -> Document:
    """The document of an answer; `name` is for its title where it does not name its model."""
    units = answer.get("explanation", ())
    failed = [failure for unit in units for failure in unit["failures"]]
    errors = [
        one["error"] for unit in units for one in unit["candidates"] if one["chosen"] and one["error"] is not None
    ]
    figures: dict[str, Cell] = {
        "measured ms": answer["measured_ms"],
        "predicted ms": answer["predicted_ms"],
        "steps": len(answer["layers"]),
        "seconds of tuning": answer["tuning_s"],
        "measurements made": answer["measurements"],
    }
    if units:
        figures["routines that failed on a layer"] = len(failed)
        figures["largest error of a chosen routine"] = max(errors, default=None)
    return Document(f"Tuning {answer.get('model', name)}", _lead(answer), figures, list(_sections(answer)))


def _lead(answer: Answer) -> str:
    processors = dict.fromkeys(one["processor"] for one in answer["layers"] if one["processor"])
    where = " and ".join(processors) or answer["target"]
    said = [f"Routines of every layer on {where}, selected by {answer['selector']}: {choice_text(answer)}."]
    if difference := difference_text(answer):
        said.append(sentence(difference))
    if answer["dtypes"]["predicted_ms"]:
        said.append(sentence(dtypes_text(answer["dtypes"])))
    if "accuracy" in answer:
        said.append(sentence(accuracy_text(answer["accuracy"])))
    return " ".join(said)


def _sections(answer: Answer) -> Iterator[Section]:
    units = answer.get("explanation", ())
    rows = _steps(answer["layers"], {unit["name"]: unit for unit in units})
    if any(row.ms for row in rows):
        yield Section("Where the time goes", _BARS if units else _BARS.partition(";")[0] + ".", _longest(rows))
    yield Section("Layers", _LAYERS if units else "", table=_layers(rows, explained=bool(units)))
    if answer.get("placement"):
        yield _placement(answer["placement"])
    if units:
        yield Section("Candidates of every layer", _CANDIDATES, table=_candidates(units), folded=True)
        yield _failures(units)
    if answer.get("comparison"):
        yield _selectors(answer["comparison"])
    if answer.get("pareto"):
        front = answer["pareto"]
        table = Table(front_titles(front), front_rows(front), 0)
        yield Section("Pareto front", _FRONT, front_panel(front), table)


class _Step:
    """A step of the plan, with what the explanation says of its layer; None where it says nothing."""

    def __init__(self, layer: Answer, unit: Answer | None) -> None:
        self.layer = layer
        self.ms = float(layer["cost_ms"] or 0.0)
        candidates = unit["candidates"] if unit is not None else ()
        chosen = next((one for one in candidates if one["chosen"]), None)
        self.error: float | None = None if chosen is None else chosen["error"]
        self.other = None if chosen is None or chosen["fused"] else _next_best(candidates, chosen)

    @property
    def times_as_long(self) -> float | None:
        """Time of the fastest other routine over the chosen one's."""
        return None if self.other is None or not self.ms else float(self.other["cost_ms"]) / self.ms


def _next_best(candidates: Sequence[Answer], chosen: Answer) -> Answer | None:
    """The fastest candidate with another routine, or on another processor, for the layer alone."""
    mine = (chosen["processor"], chosen["routine"])
    others = (one for one in candidates if (one["processor"], one["routine"]) != mine and not one["fused"])
    return min(others, key=lambda one: float(one["cost_ms"]), default=None)


def _steps(layers: Sequence[Answer], units: Mapping[str, Answer]) -> list[_Step]:
    return [_Step(layer, units.get(layer["name"])) for layer in layers]


def _longest(rows: Sequence[_Step]) -> Panel:
    least = sorted((row.ms for row in rows), reverse=True)[:_MOST_BARS][-1]
    return bars_panel([_bar(row) for row in rows if row.ms and row.ms >= least][:_MOST_BARS], " ms", CLASSES)


def _bar(row: _Step) -> Bar:
    layer, other = row.layer, row.other
    routine = f"{layer['routine']} {parameters_text(layer['parameters'])}"
    tip = f"{layer['name']}\n{operator_text(layer['op'])}, {routine}\n{row.ms:.4g} ms"
    end = row.ms
    if other is not None:
        tip += f"\nnext best: {other['routine']}, {other['cost_ms']:.4g} ms"
        end = float(other["cost_ms"]) if float(other["cost_ms"]) <= _NEAR * row.ms else row.ms
    return Bar(layer["name"], row.ms, row.ms, max(row.ms, end), tip, op_class(layer["op"], layer["routine"]))


def _layers(rows: Sequence[_Step], *, explained: bool) -> Table:
    """Every step beside its next best routine; parameters stand with the candidates, if these are shown."""
    total = sum(row.ms for row in rows) or 1.0
    several = len({row.layer["processor"] for row in rows}) > 1
    texts = [
        "layer",
        "operator",
        *(["processor"] if several else []),
        "routine",
        "next best" if explained else "parameters",
    ]
    numbers = ["ms", "% of all", *(["next best ms", "× as long", "error"] if explained else [])]
    cells: list[list[Cell]] = []
    for row in rows:
        layer, other = row.layer, row.other
        about = [
            layer["name"],
            operator_text(layer["op"]),
            *([layer["processor"]] if several else []),
            layer["routine"],
        ]
        about.append(_other_text(row, several=several) if explained else parameters_text(layer["parameters"]))
        times = [layer["cost_ms"], _PER_CENT * row.ms / total]
        beside = [None if other is None else other["cost_ms"], row.times_as_long, row.error] if explained else []
        cells.append([*about, *times, *beside])
    return Table([*texts, *numbers], cells, len(texts))


def _other_text(row: _Step, *, several: bool) -> str:
    """The fastest other routine of a step, with its processor if there are several; "" if there is none."""
    if row.other is None:
        return ""
    return f"{row.other['routine']} on {row.other['processor']}" if several else str(row.other["routine"])


def _placement(placement: Answer) -> Section:
    """Predicted latencies of all processors together and of each alone."""
    alone: Mapping[str, float] = placement["alone_ms"]
    rows: list[list[Cell]] = [["all at the same time", placement["together_ms"]]]
    rows += [[f"{name} alone", ms] for name, ms in alone.items()]
    rows.append(["lower bound of any placement of whole layers", placement["bound_ms"]])
    chosen = 0 if placement["pays"] else 1 + list(alone.values()).index(min(alone.values()))
    split = ", ".join(placement["splits"])
    bands = ", ".join(placement.get("bands", ()))
    texts = [f"Sections that processors compute in bands of rows: {bands}."] if bands else []
    texts += [f"Layers that are split over processors: {split}."] if split else []
    text = " ".join(texts) if placement["pays"] else ""
    return Section("Processors", text, table=Table(("run", "predicted ms"), rows, marked=frozenset({chosen})))


def _candidates(units: Sequence[Answer]) -> Table:
    several = len({one["processor"] for unit in units for one in unit["candidates"]}) > 1
    rows: list[list[Cell]] = []
    chosen: set[int] = set()
    for unit in units:
        for number, one in enumerate(unit["candidates"]):
            if one["chosen"]:
                chosen.add(len(rows))
            about = [unit["name"], operator_text(unit["op"]), *([one["processor"]] if several else []), one["routine"]]
            adapts = unit["adapts_ms"] if one["chosen"] else None
            loses = None if number else unit["greedy_loss_ms"]
            notes = [parameters_text(one["parameters"]), one["layouts"]]
            rows.append([*about, one["cost_ms"], adapts, loses, one["error"], *notes])
    texts = ["layer", "op", *(["processor"] if several else []), "routine"]
    titles = [*texts, "ms", "adapts ms", "greedy loses ms", "error", "parameters", "layouts"]
    return Table(titles, rows, len(texts), frozenset(chosen), notes=2)


def _failures(units: Sequence[Answer]) -> Section:
    rows: list[list[Cell]] = [
        [unit["name"], one["processor"], one["routine"], f"{one['failed']} of {one['settings']}", one["reason"]]
        for unit in units
        for one in unit["failures"]
    ]
    if not rows:
        return Section("What failed", "Nothing: every routine that was measured gave a right answer.")
    titles = ("layer", "processor", "routine", "settings that failed", "reason")
    return Section("What failed", _FAILURES, table=Table(titles, rows, len(titles)))


def _selectors(rows: Sequence[Answer]) -> Section:
    titles = ("selector", "optimality", "predicted ms", "over the best", "states", "seconds")
    marked = frozenset(number for number, row in enumerate(rows) if row["optimal"])
    return Section(
        "All selectors on the same problem",
        _SELECTORS,
        search_panel(rows),
        Table(titles, comparison_rows(rows), 2, marked),
    )
