"""The page of a branched network: the equal-MACs comparison, timelines, the design and its training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.bench.ablation.breakdown import CAUSES
from nnstretch.bench.timing import describe_machine
from nnstretch.devices.base.spec import usable_cores
from nnstretch.report.charts.branching import causes_svg, design_svg, latency_svg, training_svg
from nnstretch.report.charts.timeline import timeline_svg
from nnstretch.report.pages import render
from nnstretch.report.tables.ablation import (
    TITLES,
    alternative_text,
    branch_cells,
    prediction_text,
    row_cells,
    when_branching_pays,
)
from nnstretch.report.tables.text import disturbed_text, interval_text
from nnstretch.support.settings import write_text

if TYPE_CHECKING:
    from nnstretch.bench.ablation.result import Ablation
    from nnstretch.branching.design.design import Design
    from nnstretch.training.loop.checkpoint import EpochRecord


def write_report(
    path: Path,
    ablation: Ablation,
    *,
    histories: Mapping[str, Sequence[EpochRecord]] | None = None,
    design: Design | None = None,
    machine: Mapping[str, Any] | None = None,
    title: str = "A branched network and its gain",
    unbranched: str | None = None,
) -> None:
    """Writes the page to a file.

    Args:
        path: the file.
        ablation: the measurements.
        histories: network -> its training, epoch by epoch.
        design: the branching.
        machine: the result of `nnstretch.bench.timing.describe_machine`; measured now if None.
        title: the page's heading.
        unbranched: why the network is the original, without branches; None if it is branched.

    Raises:
        FileError: the place is not writable or the disk is full.
    """
    charts = {
        "latency": latency_svg(ablation),
        "causes": causes_svg(ablation) if ablation.causes else "",
        "timeline": timeline_svg(ablation.timeline, alone=False),
        "serial_timeline": timeline_svg(ablation.serial_timeline, alone=False),
        "design": design_svg(design, ablation.processors) if design else "",
        "training": training_svg(histories) if histories and any(histories.values()) else "",
    }
    prediction = prediction_text(ablation)
    page = render(
        "branching.html",
        title=title if unbranched is None else "A network that was not branched",
        figures=_figures(ablation),
        machine=machine or describe_machine(usable_cores()),
        ablation=ablation,
        unbranched=unbranched,
        alternative=alternative_text(ablation),
        when_branching_pays=when_branching_pays(ablation),
        disturbed=disturbed_text(ablation.widest_interval),
        rows=_rows(ablation),
        causes=_causes(ablation),
        branches=[branch_cells(branch) for branch in ablation.branches],
        prediction=f"{prediction[0].upper()}{prediction[1:]}." if prediction else "",
        design=design,
        charts=charts,
    )
    write_text(path, page)


def _figures(ablation: Ablation) -> list[tuple[str, str]]:
    def with_interval(meaning: str, field: str, form: str) -> str:
        found = interval_text(ablation.intervals.get(field), form)
        return f"{meaning}, {found}" if found else meaning

    return [
        (
            f"{ablation.speedup_best_alternative:.2f}×",
            with_interval("as fast as the best alternative", "speedup_best_alternative", ".2f"),
        ),
        (f"{ablation.branched_ms:.3g} ms", with_interval("branched, concurrent", "branched_ms", ".3g")),
        (f"{ablation.speedup:.2f}×", with_interval("the fastest single processor", "speedup", ".2f")),
        (
            f"{ablation.speedup_equal_macs:.2f}×",
            with_interval("at equal multiply-accumulates", "speedup_equal_macs", ".2f"),
        ),
        (f"{ablation.split_share:.0%}", with_interval("of the perfect split", "split_share", ".0%")),
        (f"{ablation.max_rel_error:.0e}", "largest error against ONNX Runtime"),
    ]


def _causes(ablation: Ablation) -> dict[str, Any]:
    """The rows of the table of causes; empty if no run was traced."""
    if not ablation.causes:
        return {}
    cells = [(c, CAUSES[c], f"{ms:.3f}", f"{ms / ablation.branched_ms:.1%}") for c, ms in ablation.causes.items()]
    cells.append(("measured", "", f"{ablation.branched_ms:.3f}", "100.0%"))
    return {"cells": cells, "kinds": [*[None] * len(ablation.causes), "chosen"]}


def _rows(ablation: Ablation) -> dict[str, Any]:
    kinds = ["chosen" if row.how == "concurrent" else "bound" if row.latency is None else None for row in ablation.rows]
    titles = [title.lstrip(">") for title in TITLES]
    return {"titles": titles, "cells": [row_cells(row) for row in ablation.rows], "kinds": kinds}
