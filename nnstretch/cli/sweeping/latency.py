"""`nnstretch sweep latency`: the grid, its table and its files."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nnstretch.api.options import CompileOptions
from nnstretch.cli.console import Reporter
from nnstretch.cli.sources import Source
from nnstretch.compiler.environment import environment, with_environment
from nnstretch.errors import UsageError
from nnstretch.report.documents.answers import read_answer
from nnstretch.report.documents.writers import write
from nnstretch.report.tables.text import plain_table
from nnstretch.support.json_text import json_text
from nnstretch.support.progress import silent
from nnstretch.support.settings import write_text
from nnstretch.sweeps.grid import GridPoint, GridResult, grid, measured

if TYPE_CHECKING:
    from rich.table import Table

    from nnstretch.scheduler.runtime.base_session import Session

_Number = TypeVar("_Number")


def parse_list(option: str, text: str | None, number: Callable[[str], _Number]) -> list[_Number | None]:
    """Values separated by commas; without any, None alone.

    Raises:
        UsageError: one is not understood, or not above 0.
    """
    if text is None:
        return [None]
    try:
        return [_positive(number(part)) for part in text.split(",")]
    except ValueError:
        raise UsageError(f"{option} {text} is not understood; write whole numbers above 0, such as 1,2,4") from None


def _positive(value: _Number) -> _Number:
    if not value > 0:  # type: ignore[operator]
        raise ValueError
    return value


def sweep_latency(
    report: Reporter,
    models: Sequence[str],
    processors: Sequence[str],
    threads: Sequence[int | None],
    image_sizes: Sequence[int | None],
    batches: Sequence[int | None],
    options: CompileOptions,
    seconds: float,
    outputs: Sequence[Path],
) -> int:
    """Measures a grid, shows it and writes it; returns the exit status: 1 if no point could be run.

    Raises:
        NNStretchError: a model does not exist, or a file cannot be written.
    """
    for model in models:
        Source(model, options).check_exists()

    def open_session(point: GridPoint) -> Session:
        chosen = replace(options, processors=point.processors, threads=point.threads, batch=point.batch)
        return Source(point.model, chosen, image_size=point.image_size).open(silent)

    with report.progress("Sweeping") as advance:
        points = grid(models, processors, threads, image_sizes, batches)
        results = list(measured(points, open_session, seconds, advance))
    answer = {"results": [one.row() for one in results]}
    report.show(latency_table(results))  # first, so that a place that is full loses nothing
    for path in outputs:
        if path.suffix == ".json":
            write_text(path, json_text(with_environment(answer)))
        elif path.suffix == ".csv":
            write_text(path, _csv(results))
        else:
            write(read_answer(path, with_environment(answer)), path)
    report.finish(answer)
    return int(all(one.error for one in results))


def _csv(results: Sequence[GridResult]) -> str:
    """A row per point, with what it was measured by in the last columns."""
    stamp = _flat(environment())
    text = io.StringIO()
    writer = csv.DictWriter(text, [*results[0].row(), *stamp], lineterminator="\n")
    writer.writeheader()
    writer.writerows({**one.row(), **stamp} for one in results)
    return text.getvalue()


def _flat(found: Mapping[str, Any]) -> dict[str, str]:
    """An environment as columns: `environment.NAME`, of libraries `environment.libraries.NAME`."""
    plain = {name: value for name, value in found.items() if name != "libraries"}
    plain |= {f"libraries.{name}": value for name, value in found["libraries"].items()}
    return {
        f"environment.{name}": "; ".join(value) if isinstance(value, list) else str(value)
        for name, value in plain.items()
    }


def latency_table(results: Sequence[GridResult]) -> Table:
    """A row per point; settings that all points share are in no column."""
    points = [one.point for one in results]
    settings = [
        name
        for name in ("model", "processors", "threads", "image_size", "batch")
        if name == "model" or len({getattr(point, name) for point in points}) > 1
    ]
    errors = any(one.error for one in results)
    columns = [
        name.replace("_", " ") if name in {"model", "processors"} else f">{name.replace('_', ' ')}" for name in settings
    ]
    table = plain_table(*columns, ">p50 ms", ">p90 ms", ">images/s", *(["error"] if errors else []))
    for one in results:
        values = ["" if value is None else f"{value:.4g}" for value in (one.p50_ms, one.p90_ms, one.images_per_s)]
        cells = [str(getattr(one.point, name) or "") for name in settings]
        table.add_row(*cells, *values, *([one.error] if errors else []))
    return table
