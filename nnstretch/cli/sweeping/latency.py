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
from nnstretch.cli.models.sources import Source
from nnstretch.compiler.environment import environment, with_environment
from nnstretch.devices.base.spec import usable_cores
from nnstretch.errors import UsageError
from nnstretch.report.documents.answers import read_answer
from nnstretch.report.documents.writers import write
from nnstretch.report.tables.text import plain_table
from nnstretch.support.image_size import ImageSize, size_key
from nnstretch.support.json_text import json_text
from nnstretch.support.progress import silent
from nnstretch.support.settings import write_text
from nnstretch.support.words import counted
from nnstretch.sweeps.grid import GridPoint, GridResult, RunTimes, grid, measured, session_times

if TYPE_CHECKING:
    from rich.table import Table

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
    image_sizes: Sequence[ImageSize | None],
    batches: Sequence[int | None],
    options: CompileOptions,
    seconds: float,
    outputs: Sequence[Path],
    targets: Sequence[str] = (),
) -> int:
    """Measures a grid, shows it and writes it; returns the exit status: 1 if no point could be run.

    Targets come one after the other. One that cannot be used has its reason in all its rows.

    Raises:
        NNStretchError: a model does not exist, a setting cannot be, a target is not understood, or a file cannot be written.
    """
    for model in models:
        Source(model, options).check_exists()
    _check_settings([Source(model, options) for model in models], threads, image_sizes, targets)

    def here(point: GridPoint) -> RunTimes:
        with _source(point, options).open(silent) as session:
            return session_times(session, seconds)

    def points(target: str | None = None) -> list[GridPoint]:
        return grid(models, processors, threads, image_sizes, batches, target)

    if targets:
        results = _on_targets(report, targets, points, lambda point: _source(point, options), seconds)
    else:
        with report.progress("Sweeping") as advance:
            results = list(measured(points(), here, advance))
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


def _check_settings(
    models: Sequence[Source],
    threads: Sequence[int | None],
    image_sizes: Sequence[ImageSize | None],
    targets: Sequence[str],
) -> None:
    """Refuses settings that would change nothing, and whose rows would then be wrong.

    Raises:
        UsageError: more threads than this machine has cores, or image sizes for a file.
    """
    most, cores = max((count or 0 for count in threads), default=0), len(usable_cores())
    if not targets and most > cores:
        raise UsageError(
            f"--thread-counts {most}: this process may use {counted(cores, 'core')}; give at most that many"
        )
    fixed = [] if image_sizes == [None] else [model for model in models if model.has_own_size]
    if fixed:
        raise UsageError(
            "--image-sizes is for networks by name, module.py:factory and files that leave height and width open; "
            f"{fixed[0].model} is for images of its own size: measure it without, or export it for each size"
        )


def _source(point: GridPoint, options: CompileOptions) -> Source:
    """The model of a point, with its settings."""
    chosen = replace(options, processors=point.processors, threads=point.threads, batch=point.batch)
    return Source(point.model, chosen, image_size=point.image_size)


def _on_targets(
    report: Reporter,
    targets: Sequence[str],
    points: Callable[[str], Sequence[GridPoint]],
    source: Callable[[GridPoint], Source],
    seconds: float,
) -> list[GridResult]:
    """The results of all targets. Raises as `sweep_latency` does."""
    from nnstretch.cli.sweeping.target_runs import TargetRuns, opened_targets
    from nnstretch.compiler.targets.opencl import names_opencl

    results: list[GridResult] = []
    opencl = any(names_opencl(point.processors) for target in targets for point in points(target))
    with opened_targets(targets, opencl=opencl) as (opened, failures), report.progress("Sweeping") as advance:
        for target in targets:
            if target in failures:
                results += [GridResult(point, error=failures[target]) for point in points(target)]
            else:
                results += measured(points(target), TargetRuns(*opened[target], source, seconds), advance)
    return results


def _csv(results: Sequence[GridResult]) -> str:
    """A row per point, with what it was measured by in the last columns."""
    stamp = _flat(environment())
    text = io.StringIO()
    writer = csv.DictWriter(text, [*results[0].row(), *stamp], lineterminator="\n")
    writer.writeheader()
    writer.writerows({**one.row(), "image_size": size_key(one.point.image_size), **stamp} for one in results)
    return text.getvalue()


def _flat(found: Mapping[str, Any]) -> dict[str, str]:
    """An environment as columns: `environment.NAME`, of libraries `environment.libraries.NAME`."""
    plain = {name: value for name, value in found.items() if name != "libraries"}
    plain |= {f"libraries.{name}": value for name, value in found["libraries"].items()}
    return {
        f"environment.{name}": "; ".join(value) if isinstance(value, list) else str(value)
        for name, value in plain.items()
    }


_WORDS = ("target", "model", "processors")
"""Settings that are words; the others are numbers."""


def latency_table(results: Sequence[GridResult]) -> Table:
    """A row per point; settings that all points share are in no column."""
    points = [one.point for one in results]
    settings = [
        name
        for name in ("target", "model", "processors", "threads", "image_size", "batch")
        if name == "model" or len({getattr(point, name) for point in points}) > 1
    ]
    errors = any(one.error for one in results)
    columns = [name.replace("_", " ") if name in _WORDS else f">{name.replace('_', ' ')}" for name in settings]
    table = plain_table(*columns, ">p50 ms", ">p90 ms", ">images/s", *(["error"] if errors else []))
    for one in results:
        values = ["" if value is None else f"{value:.4g}" for value in (one.p50_ms, one.p90_ms, one.images_per_s)]
        point = {**vars(one.point), "image_size": size_key(one.point.image_size)}
        cells = [str(point[name] or "") for name in settings]
        table.add_row(*cells, *values, *([one.error] if errors else []))
    return table
