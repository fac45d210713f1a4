"""`nnstretch bench` without a design: engines side by side on one model or many, and what is made of the results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.api.options import CompileOptions
from nnstretch.cli.console import Reporter
from nnstretch.errors import UsageError

if TYPE_CHECKING:
    from nnstretch.bench.comparison.suite import Result, Series

_INTERRUPTED_STATUS = 130
_STARTS = 3
_TURN = 0.25
_SUFFIXES = (".json", ".svg", ".html")


@dataclass(frozen=True)
class ComparisonRequest:
    """The options of a comparison of engines, as the command line has them.

    Attributes:
        suite: name of a suite of zoo networks, or None.
        against: engines, separated by commas.
        threads: numbers of cores, separated by commas.
        rounds: turns of every engine.
        budget: seconds per engine and model after which no further round begins.
        layers: whether the time of each of our layers is shown.
        start: whether start-up is measured.
        seed: of inputs and weights.
        options: how our engine compiles the models.
    """

    suite: str | None
    against: str
    threads: str
    rounds: int
    budget: float
    layers: bool
    start: bool
    seed: int
    options: CompileOptions


def compare_models(
    report: Reporter, models: Sequence[str], request: ComparisonRequest, outputs: Sequence[Path], *, resume: bool
) -> int:
    """Compares engines on every model, and shows and writes what was found, also when it is interrupted.

    Files are rewritten after every model, so that a comparison which is killed leaves its results.

    Returns:
        The exit status.

    Raises:
        NNStretchError: an option is wrong, a model does not exist, or the only model cannot be measured.
    """
    from nnstretch.bench.comparison.suite import outcome, read_results, run_series

    series = _series(models, request)
    kept = _kept_file(outputs, resume=resume)
    known = read_results(kept) if kept else []
    results: list[Result] = []
    interrupted = False
    try:
        for result in run_series(series, known, report.progress):
            results.append(result)
            if series.size > 1:
                report.note(f"{outcome(result)} ({len(results)} of {series.size})")
            _write(outputs, series, results)
    except KeyboardInterrupt:
        if not results:
            raise
        interrupted = True
    _show(report, series, results, request)
    report.finish(_answer(series, results))
    return _INTERRUPTED_STATUS if interrupted else 0


def _series(given: Sequence[str], request: ComparisonRequest) -> Series:
    from nnstretch.bench.comparison.compare import ComparisonOptions, parse_engines
    from nnstretch.bench.comparison.suite import Series, parse_threads, suite
    from nnstretch.bench.timing.interleaving import TimingOptions
    from nnstretch.devices.base.spec import usable_cores
    from nnstretch.devices.targets import open_target

    named = [*given, *(suite(request.suite) if request.suite else ())]
    if not named:
        raise UsageError("nothing to measure; give a MODEL or a --suite")
    if request.suite and request.options.shapes:
        raise UsageError("--shape does not go with --suite, whose networks have their own shapes")
    threads = parse_threads(request.threads)
    options = ComparisonOptions(
        (),
        TimingOptions(request.rounds, _TURN, request.budget),
        starts=_STARTS if request.start else 1,
        tune=request.options.tune,
        tolerance=request.options.tolerance,
        plan=None if request.options.plan is None else str(request.options.plan),
        layers=request.layers,
        target=open_target(request.options.target),
    )
    engines = parse_engines(request.against)
    shapes = dict(request.options.shapes or {})
    models = tuple(dict.fromkeys(named))
    return Series(models, engines, threads, usable_cores(), options, shapes, request.seed, request.options.batch)


def _kept_file(outputs: Sequence[Path], *, resume: bool) -> Path | None:
    """The file whose results are kept."""
    check_endings(outputs, "results are", _SUFFIXES)
    files = [path for path in outputs if path.suffix == ".json"]
    if resume and not files:
        raise UsageError("--resume needs the .json file of the earlier results; name it with -o")
    return files[0] if resume else None


def _answer(series: Series, results: Sequence[Result]) -> dict[str, Any]:
    from nnstretch.bench.comparison.suite import highest_peak, summaries
    from nnstretch.bench.timing.machine import describe_machine

    machine = describe_machine(series.cores[: max(series.threads)], highest_peak(results))
    return {"machine": machine, "summary": summaries(results), "results": list(results)}


def _show(report: Reporter, series: Series, results: Sequence[Result], request: ComparisonRequest) -> None:
    if report.as_json:
        return
    from nnstretch.report.tables.bench import comparison_table, failures, layer_table, start_table

    answer = _answer(series, results)
    names = [entry.name for entry in series.engines]
    for summary in answer["summary"]:
        shown = [one for one in results if one["threads"] == summary["threads"]]
        report.show(comparison_table(shown, names, answer["machine"], summary))
    if request.start:
        report.show(start_table(results, [entry.name for entry in series.engines if entry.from_file]))
    if request.layers:
        report.show(*(layer_table(one) for one in results if "layers" in one))
    for line in failures(results):
        report.note(line)


def _write(outputs: Sequence[Path], series: Series, results: Sequence[Result]) -> None:
    from nnstretch.support.settings import write_text

    if not outputs:
        return
    answer = _answer(series, results)
    for path in outputs:
        if path.suffix == ".json":
            write_json(path, answer)
            continue
        if path.suffix == ".svg":
            from nnstretch.report.charts.bench import bench_picture as made
        else:
            from nnstretch.report.pages.bench import bench_html as made
        write_text(path, made(answer))


def check_endings(outputs: Sequence[Path], what: str, endings: Sequence[str]) -> None:
    """Looks whether files of these names say how something is to be written.

    Args:
        outputs: the files.
        what: is written, with its verb, as the begin of a sentence.
        endings: of file names.

    Raises:
        UsageError: one has another ending.
    """
    for path in outputs:
        if path.suffix not in endings:
            named = "choose one of these endings" if len(endings) > 1 else "choose this ending"
            raise UsageError(f"-o {path}: {what} written as {', '.join(endings)}; {named}")


def write_json(path: Path, answer: Mapping[str, Any]) -> None:
    """Writes an answer as JSON.

    Raises:
        FileError: the place is not writable or the disk is full.
    """
    from nnstretch.support.settings import write_text

    write_text(path, json.dumps(answer, indent=1))
