"""The table of a comparison of two commits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.bench.timing import interval
from nnstretch.report.tables.text import interval_text, plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from nnstretch.bench.regression.results import CaseResult, RegressionResult

_COLUMNS = (">A ms", ">B ms", ">B/A", ">95 % interval", ">A tunes s", ">B tunes s", ">B/A", ">difference")


def regression_table(result: RegressionResult) -> Table:
    """A row per case; verdicts against B are bold."""
    table = plain_table("model", "processors", ">threads", *_COLUMNS, "verdict", title="Latency and tuning time")
    for one in result.cases:
        case = one.case
        threads = "–" if case.threads is None else str(case.threads)
        style = "bold" if one.is_bad else None
        table.add_row(Path(case.model).name, case.processors, threads, *_figures(one), one.verdict, style=style)
    return table


def _figures(one: CaseResult) -> list[str]:
    if not one.sides:
        return ["–"] * len(_COLUMNS)
    return [
        *(f"{side.p50_ms:.3f}" for side in one.sides),
        f"{one.ratio():.3f}",
        interval_text(interval(one.ratios), ".3f"),
        *(f"{side.tuning_s:.1f}" for side in one.sides),
        f"{one.ratio('tuning_s'):.2f}",
        f"{one.difference:.0e}",
    ]


def means_line(result: RegressionResult) -> str:
    """The geometric means over the cases; empty if none ran."""
    means = result.means()
    if means["geometric_mean"] is None:
        return ""
    return (
        f"geometric mean of B/A: {means['geometric_mean']:.3f} "
        f"({interval_text(means['geometric_mean_interval'], '.3f')}); "
        f"of tuning times {means['tuning_geometric_mean']:.2f}"
    )
