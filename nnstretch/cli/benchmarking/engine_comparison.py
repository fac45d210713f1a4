"""`nnstretch bench` without a design: engines side by side on one model or many, and what is made of the results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.api.options import CompileOptions
from nnstretch.cli.console import Reporter
from nnstretch.cli.outputs import check_endings, note_written
from nnstretch.cli.statuses import INTERRUPTED
from nnstretch.errors import UsageError
from nnstretch.support.json_text import json_text

if TYPE_CHECKING:
    from nnstretch.bench.comparison.suite import Result, Series
    from nnstretch.bench.timing import TimingOptions

_STARTS = 3


def compare_models(report: Reporter, series: Series, outputs: Sequence[Path], *, resume: bool) -> int:
    """Compares engines on every model, and shows and writes the results, also when it is interrupted.

    Files are rewritten after every model, so that a comparison which is killed leaves its results.

    Returns:
        The exit status: 1 if our engine failed on a model.

    Raises:
        NNStretchError: an option is wrong, a model does not exist, or the only model cannot be measured.
    """
    from nnstretch.bench.comparison.suite import is_failure, outcome, read_results, run_series

    kept = _kept_file(outputs, resume=resume)
    known = read_results(kept) if kept else []
    results: list[Result] = []
    written: list[Path] = []
    interrupted = False
    try:
        for result in run_series(series, known, report.progress):
            results.append(result)
            if series.size > 1:
                report.note(f"{outcome(result)} ({len(results)} of {series.size})")
            written = _write(outputs, series, results)
    except KeyboardInterrupt:
        if not results:
            raise
        interrupted = True
    _show(report, series, results)
    note_written(report, written)
    report.finish(_answer(series, results))
    return INTERRUPTED if interrupted else int(any(map(is_failure, results)))


def parse_series(
    models: Sequence[str],
    suite: str | None,
    against: str,
    threads: str | None,
    timing: TimingOptions,
    options: CompileOptions,
    *,
    layers: bool,
    start: bool,
    seed: int,
) -> Series:
    """The comparison that a command line asks for.

    Args:
        models: as users write them.
        suite: name of a suite of zoo networks, or None.
        against: engines, separated by commas; packages alone are run by ours alone.
        threads: numbers of cores, separated by commas; None: one, or as many as the plan or those of packages are for.
        timing: rounds, turns and budget.
        options: how our engine compiles the models.
        layers: whether the time of each of our layers is measured.
        start: whether start-up is measured.
        seed: of inputs and weights.

    Raises:
        NNStretchError: an option is wrong.
    """
    from nnstretch.bench.comparison.compare import ComparisonOptions, parse_engines
    from nnstretch.bench.comparison.suite import Series, models_of_suite, parse_threads
    from nnstretch.compiler.saved_plan import check_plan, read_plan, warn_of_plan
    from nnstretch.devices.base.spec import format_cores, usable_cores
    from nnstretch.devices.targets.workers import open_target
    from nnstretch.package.format import is_package, read_package
    from nnstretch.scheduler.plan.packaging import check_trusted
    from nnstretch.scheduler.plan.schema import Plan

    named = [*models, *(models_of_suite(suite) if suite else ())]
    if not named:
        raise UsageError("nothing to measure; give a MODEL or a --suite")
    if suite and options.shapes:
        raise UsageError("--shape does not go with --suite, whose networks have their own shapes")
    packages = [path for path in map(Path, dict.fromkeys(named)) if is_package(path)]
    for path in packages if options.trusted_sources else ():
        check_trusted(read_package(path), path)
    usable = usable_cores()
    saved = None if options.plan is None else read_plan(Path(options.plan))
    if saved is not None:
        warn_of_plan(Path(options.plan or ""), saved[1])
    if threads is None:
        planned = [len(Plan.from_json(read_package(path).first.plan).cores) for path in packages]
        if saved is not None:
            planned.append(len(saved[0].cores))
        counts: tuple[int, ...] = (min(max((1, *planned)), len(usable)),)
    else:
        counts = parse_threads(threads)
    for count in counts if options.plan is not None else ():  # a plan that is not for these is refused before the work
        check_plan(replace(options, processors=f"cpu:{format_cores(usable[:count])}"))
    comparison = ComparisonOptions(
        (),
        timing,
        starts=_STARTS if start else 1,
        layers=layers,
        compiling=options,
        target=open_target(options.target),
    )
    unique, shapes = tuple(dict.fromkeys(named)), dict(options.shapes or {})
    engines = parse_engines("" if len(packages) == len(unique) else against)
    return Series(unique, engines, counts, usable, comparison, shapes, seed, options.batch)


def _kept_file(outputs: Sequence[Path], *, resume: bool) -> Path | None:
    """The file whose results are kept."""
    check_endings(outputs, "results are", answer_endings())
    files = [path for path in outputs if path.suffix == ".json"]
    if resume and not files:
        raise UsageError("--resume needs the .json file of the earlier results; name it with -o")
    return files[0] if resume else None


def _answer(series: Series, results: Sequence[Result]) -> dict[str, Any]:
    from nnstretch.bench.comparison.suite import highest_peak, other_programs, summaries, widest_interval
    from nnstretch.bench.timing import describe_machine, disturbance

    machine = describe_machine(series.cores[: max(series.threads)], highest_peak(results))
    found = disturbance(widest_interval(results), other_programs(results))
    return {"machine": machine, "summary": summaries(results), **found, "results": list(results)}


def _show(report: Reporter, series: Series, results: Sequence[Result]) -> None:
    if report.as_json:
        return
    from nnstretch.bench.comparison.suite import other_programs, widest_interval
    from nnstretch.report.tables.bench import comparison_table, failures, layer_table, start_table
    from nnstretch.report.tables.text import quietness_lines

    answer = _answer(series, results)
    names = [entry.name for entry in series.engines]
    for summary in answer["summary"]:
        shown = [one for one in results if one["threads"] == summary["threads"]]
        report.show(comparison_table(shown, names, answer["machine"], summary))
    if series.options.starts > 1:
        report.show(start_table(results, [entry.name for entry in series.engines if entry.from_file]))
    if series.options.layers:
        report.show(*(layer_table(one) for one in results if "layers" in one))
    quietness = quietness_lines(widest_interval(results), other_programs(results))
    for line in (*failures(results), *_shapes_of_factories(results, series), *quietness):
        report.note(line)


def _shapes_of_factories(results: Sequence[Result], series: Series) -> list[str]:
    """A line for each torch module whose input's shape nobody named."""
    if series.shapes or series.image_size is not None:
        return []
    found = {one["model"]: one.get("inputs", {}) for one in results if ".py:" in one["model"]}
    lines = []
    for model, shapes in found.items():
        for name, shape in shapes.items():
            example = ",".join(map(str, shape))
            lines.append(f"{model} was timed with {name} of {example}; --shape {name}={example} names another shape")
    return lines


def _write(outputs: Sequence[Path], series: Series, results: Sequence[Result]) -> list[Path]:
    return write_answer(outputs, _answer(series, results)) if outputs else []


def answer_endings() -> tuple[str, ...]:
    """Of the files in which `write_answer` writes an answer that has a report."""
    from nnstretch.report.documents.writers import ENDINGS

    return (".json", *ENDINGS)


def write_answer(outputs: Sequence[Path], answer: Mapping[str, Any]) -> list[Path]:
    """Writes an answer that has a report as JSON, and its report, as the files' endings say.

    Returns:
        What was written; tables may be several files.

    Raises:
        FileError: a place is not writable or the disk is full.
        MissingExtraError: a PNG needs a library that is not installed.
    """
    from nnstretch.compiler.environment import with_environment
    from nnstretch.report.documents.answers import answer_document
    from nnstretch.report.documents.writers import write

    document = answer_document(with_environment(answer))
    assert document is not None
    written: list[Path] = []
    for path in outputs:
        if path.suffix == ".json":
            write_json(path, answer)
            written.append(path)
        else:
            written += write(document, path)
    return written


def write_json(path: Path, answer: Mapping[str, Any]) -> None:
    """Writes an answer as JSON.

    Raises:
        FileError: the place is not writable or the disk is full.
    """
    from nnstretch.compiler.environment import with_environment
    from nnstretch.support.settings import write_text

    write_text(path, json_text(with_environment(answer)))
