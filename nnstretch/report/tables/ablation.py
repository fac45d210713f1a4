"""The equal-MACs comparison as tables for terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnstretch.bench.ablation.result import GOOD_PREDICTION, PLACED
from nnstretch.bench.timing import MIN_ROUNDS
from nnstretch.report.tables.text import count_text, interval_text, ms_text, plain_table, quietness_lines

if TYPE_CHECKING:
    from rich.table import Table

    from nnstretch.bench.ablation.result import Ablation, AblationRow, MeasuredBranch


WHEN_BRANCHING_PAYS = (
    "Branching pays where processors differ or transfers between them are slow: branches meet once per segment, the parts of "
    "split layers after every layer."
)
"""Why the gain over an alternative that divides layers among processors may be small."""
_WHY_BRANCHING_PAYS = (
    "Branching pays on these processors: branches meet once per segment, the parts of split layers after every layer."
)
_LARGE_GAIN = 1.05
NUMBERS_OF_SEGMENTS = "segments are numbered from 0, as in the names of layers; those without branches have no row"

_COUNTS = ("network", "run", "processors", ">MACs", ">parameters")
_OF_MEASUREMENTS = (">p50 ms", ">95 % interval", ">p90 ms")
_OF_SIMULATIONS = (">ms",)
_LESS_WANTED = ("p90 ms", "parameters", "MACs", "95 % interval")
"""Columns that narrow terminals lack."""


def row_cells(row: AblationRow) -> tuple[str, ...]:
    """One row of the comparison: counts, the score, and what measurements have."""
    return (
        row.network,
        row.how,
        row.processors,
        count_text(row.macs),
        count_text(row.parameters),
        "" if row.score is None else f"{row.score:.2f} %",
        ms_text(row.p50_ms),
        interval_text(row.interval_ms, ".3f"),
        ms_text(row.latency.p90_ms) if row.latency else "",
    )


def ablation_table(ablation: Ablation) -> Table:
    """One line per row of the comparison; the branched network is highlighted."""
    measured = ablation.simulated is None
    titles = (*_COUNTS, f">{ablation.measure.name}", *(_OF_MEASUREMENTS if measured else _OF_SIMULATIONS))
    shown = plain_table(*titles, optional=[title for title in _LESS_WANTED if f">{title}" in titles])
    for row in ablation.rows:
        style = "bold" if row.is_branched else "dim" if row.is_bound else None
        shown.add_row(*row_cells(row)[: len(titles)], style=style)

    def between(name: str, form: str) -> str:
        found = interval_text(ablation.intervals.get(name), form)
        return f" ({found})" if found else ""

    when = when_branching_pays(ablation)
    shown.caption = (
        f"{ablation.speedup_best_alternative:.2f}×{between('speedup_best_alternative', '.2f')} "
        f"as fast as the best alternative: {alternative_text(ablation)}.{when and f' {when}'}\n"
        f"{ablation.speedup:.2f}×{between('speedup', '.2f')} the fastest single processor, "
        f"{ablation.speedup_equal_macs:.2f}×{between('speedup_equal_macs', '.2f')} at equal MACs, "
        f"{ablation.split_share:.0%}{between('split_share', '.0%')} of the perfect split"
        f"{'' if ablation.max_rel_error is None else f'; largest error {ablation.max_rel_error:.0e}'}"
    )
    lines = [shown.caption, *quietness_lines(ablation.widest_interval, ablation.other_programs)]
    if ablation.simulated is not None:
        lines.append(f"{ablation.simulated}; nothing was run")
    elif not ablation.intervals:
        lines.append(f"95 % intervals need {MIN_ROUNDS} rounds or more (--rounds)")
    shown.caption = "\n".join(lines)
    return shown


def alternative_text(ablation: Ablation) -> str:
    """The best alternative in words: network, way to run it and processors."""
    best = ablation.best_alternative
    return f"the {best.network}, {_run_text(best)}"


def where_text(ablation: Ablation) -> str:
    """How and on what the branched network ran, or the one without branches in its place."""
    return _run_text(ablation.branched_row)


def _run_text(row: AblationRow) -> str:
    """How and on what the network of a row ran."""
    on = "of" if row.how.startswith(PLACED) else "on"  # the way names the one of several processors that it ran on
    return f"{row.how}, {on} {row.processors}"


def when_branching_pays(ablation: Ablation) -> str:
    """A sentence for a best alternative that divides the work among processors.

    "" for one that runs on a single processor, and for a design without branches.
    """
    if ablation.best_alternative.how.endswith("alone") or not ablation.branches:
        return ""
    gain = ablation.speedup_best_alternative
    low, _ = ablation.intervals.get("speedup_best_alternative", (gain, gain))
    return _WHY_BRANCHING_PAYS if gain >= _LARGE_GAIN and low > 1 else WHEN_BRANCHING_PAYS


def causes_table(ablation: Ablation) -> Table:
    """The latency by cause, beginning with the perfect split."""
    shown = plain_table("where the time goes", ">ms", ">of it")
    for name, ms in ablation.causes.items():
        shown.add_row(name, f"{ms:.3f}", f"{ms / ablation.branched_ms:.1%}")
    shown.add_row(ablation.origin, f"{ablation.branched_ms:.3f}", "100.0%", style="bold")
    return shown


def branches_table(ablation: Ablation) -> Table:
    """One line per branch: predicted latency, and the measured or simulated one alone and concurrent."""
    shown = plain_table(">segment", "processor", ">predicted ms", ">alone ms", ">error", ">beside the others ms")
    for branch in ablation.branches:
        shown.add_row(*branch_cells(branch))
    shown.caption = "\n".join(filter(None, (NUMBERS_OF_SEGMENTS, prediction_text(ablation))))
    return shown


def branch_cells(branch: MeasuredBranch) -> tuple[str, ...]:
    """Segment, processor, predicted milliseconds, those alone, error, and concurrent milliseconds."""
    time, error = branch.time, branch.error
    return (
        str(time.segment),
        time.processor,
        ms_text(branch.predicted_ms),
        ms_text(time.alone_ms),
        "" if error is None else f"{error:+.1%}",
        ms_text(time.beside_ms),
    )


def prediction_text(ablation: Ablation) -> str:
    """Accuracy of the predictions in one sentence; empty without predictions."""
    said = []
    if ablation.predicted_ms:
        error = ablation.branched_ms / ablation.predicted_ms - 1
        said.append(
            f"the whole: predicted {ablation.predicted_ms:.3f} ms, {ablation.origin} {ablation.branched_ms:.3f} ms "
            f"({error:+.1%})"
        )
    if ablation.well_predicted is not None:
        near = f"{100 * GOOD_PREDICTION:.0f} %"
        said.append(f"{ablation.well_predicted:.0%} of the branches within {near} of their prediction")
    return "; ".join(said)
