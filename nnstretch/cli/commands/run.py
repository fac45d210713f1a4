"""`nnstretch run`: run a model or package, time it, trace it, check it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnstretch.api.options import CompileOptions
from nnstretch.cli.console import Reporter, reporting
from nnstretch.cli.options import (
    DesignFile,
    Json,
    Model,
    Seed,
    Weights,
    check_writable,
    parse_assignments,
    with_options,
)
from nnstretch.errors import UsageError
from nnstretch.report.tables.placement import placement_text
from nnstretch.report.tables.text import count_text, plain_table
from nnstretch.report.tables.timeline import timeline_table, timeline_text

if TYPE_CHECKING:
    import numpy as np

    from nnstretch.bench.timing.statistics import Latency
    from nnstretch.cli.sources import Source
    from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession
    from nnstretch.scheduler.runtime.base_session import Session
    from nnstretch.scheduler.runtime.critical_path import RunSummary
    from nnstretch.scheduler.runtime.streams.session import StreamSession

_ERRORS_OF_OUTPUTS = 5.0
"""Largest error of outputs that --check allows, in multiples of the error that each routine may have."""

Inputs = Annotated[
    list[str] | None,
    typer.Option(
        "--input", "-i", metavar="x=FILE.npy", help="An input; all are random if none is given.", show_default=False
    ),
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the outputs (.npz).", show_default=False)
]
Runs = Annotated[int, typer.Option("--runs", "-n", min=1, metavar="N", help="Maximum number of timed runs.")]
Timeline = Annotated[
    Path | None,
    typer.Option(
        "--timeline",
        metavar="FILE",
        help="Write a trace of one run for Perfetto (.json), and show its critical path.",
        show_default=False,
    ),
]
Check = Annotated[bool, typer.Option("--check", help="Compare the outputs with ONNX Runtime's.")]
MaxError = Annotated[
    float | None,
    typer.Option(
        "--max-error",
        metavar="E",
        min=0.0,
        help="Largest output error that --check allows, relative to the output's range.",
        show_default="5 times --tolerance",
    ),
]


@with_options(CompileOptions)
def run_command(
    model: Model,
    inputs: Inputs = None,
    output: Output = None,
    runs: Runs = 50,
    timeline: Timeline = None,
    check: Check = False,
    max_error: MaxError = None,
    *,
    options: CompileOptions,
    weights: Weights = None,
    design: DesignFile = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Run a model or package and report its latency, or with --streams its throughput.

    With --check, exit status 1 means that the outputs differ from ONNX Runtime's.

    Example: nnstretch run resnet50.nns --input x=image.npy -o outputs.npz --timeline timeline.json
    """
    with reporting(as_json=json) as report:
        from nnstretch.cli.sources import Source

        if options.streams is not None and timeline is not None:
            raise UsageError("--timeline shows a single run; leave it or --streams out")
        files = parse_assignments(inputs or [], "--input")
        source = Source(model, options, weights, design)
        allowed = _ERRORS_OF_OUTPUTS * options.tolerance if max_error is None else max_error
        for path in (output, timeline):
            if path is not None:
                check_writable(path)
        with report.progress("Compiling") as advance:
            session = source.open(advance)
        with session:
            feeds = _feeds(session, files, seed)
            outputs = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
            if output is not None:
                _write_outputs(output, outputs)
            error = _error(source, feeds, outputs) if check else None
            _show_outputs(report, outputs)
            times = _time(report, session, feeds, runs, timeline)
            plan = session.plan
        passed = error is None or error <= allowed
        if error is not None:
            report.show(_error_line(error, allowed))
        report.finish(
            {
                "model": model,
                **times,
                "macs": plan.macs,
                "outputs": {name: {"shape": list(y.shape), "dtype": str(y.dtype)} for name, y in outputs.items()},
                "fallback_layers": list(plan.fallback_layers),
                "max_rel_error": error,
                "passed": passed if check else None,
            }
        )
        if not passed:
            raise typer.Exit(1)


def _time(
    report: Reporter,
    session: Session,
    feeds: dict[str, np.ndarray],
    runs: int,
    timeline: Path | None,
) -> dict[str, Any]:
    """Times runs or streams, shows the results, and returns them as JSON."""
    from nnstretch.scheduler.runtime.streams.session import StreamSession

    if isinstance(session, StreamSession):
        return _time_streams(report, session, feeds, runs)
    return _time_runs(report, session, feeds, runs, timeline)


def _time_runs(
    report: Reporter,
    session: Session,
    feeds: dict[str, np.ndarray],
    runs: int,
    timeline: Path | None,
) -> dict[str, Any]:
    """Times one run after another, shows latencies, and returns them as JSON."""
    from nnstretch.bench.timing.statistics import latency
    from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession

    times = latency([session.time(feeds, warmup=3, runs=runs)])
    summary = None if timeline is None else _write_timeline(timeline, session, feeds)
    if (placement := session.compiled.placement) is not None:
        report.note(placement_text(placement, session.plan))
    report.show(_latency_line(times, session.plan.macs))
    plans = _plans_used(session) if isinstance(session, AdaptiveSession) else None
    if plans is not None:
        report.show(*_plans_text(plans))
    if summary is not None:
        report.show(timeline_table(summary), timeline_text(summary))
    return {**times.to_json(), "plans": plans, "timeline": None if summary is None else summary.to_json()}


def _time_streams(report: Reporter, session: StreamSession, feeds: dict[str, np.ndarray], runs: int) -> dict[str, Any]:
    """Times runs with several inputs in flight, shows the images per second, and returns them as JSON."""
    import time

    from nnstretch.bench.timing.statistics import significant
    from nnstretch.report.tables.throughput import arrangement_text, memory_text

    session.run_many([feeds] * session.streams)
    begin = time.perf_counter()
    session.run_many([feeds] * runs)
    seconds = time.perf_counter() - begin
    batch = session.get_inputs()[0].shape[0]
    arrangement = session.arrangement
    report.show(
        f"{runs * batch / seconds:.1f} images per second over {runs} runs; {arrangement_text(arrangement)}; "
        f"{memory_text(arrangement)}"
    )
    return {
        "images_per_s": significant(runs * batch / seconds),
        "streams": session.streams,
        "replica_groups": [
            {"processors": list(group.processors), "streams": group.streams} for group in arrangement.groups
        ],
        "weight_bytes": arrangement.weight_bytes,
        "stream_bytes": arrangement.stream_bytes,
    }


def _feeds(session: Session, files: dict[str, str], seed: int) -> dict[str, np.ndarray]:
    """Inputs from files, or all of them random; the session checks names and shapes."""
    from nnstretch.bench.comparison.subject import plan_feeds
    from nnstretch.cli.sources import read_array

    if not files:
        return plan_feeds(session.plan, seed)
    return {name: read_array(Path(file)) for name, file in files.items()}


def _write_outputs(path: Path, outputs: dict[str, np.ndarray]) -> None:
    import io

    import numpy as np

    from nnstretch.support.settings import atomic_write

    # Writing an archive seeks back, and a full disk must not leave half a file.
    archive = io.BytesIO()
    np.savez(archive, **outputs)  # type: ignore[arg-type]
    with atomic_write(path) as file:
        file.write(archive.getvalue())


def _write_timeline(path: Path, session: Session, feeds: dict[str, np.ndarray]) -> RunSummary:
    """Writes the trace of a run; returns its critical path."""
    from nnstretch.scheduler.runtime.critical_path import run_summary
    from nnstretch.support.settings import write_text

    found = session.profile(feeds)
    write_text(path, found.to_chrome_json())
    return run_summary(session.plan, found)


def _error(source: Source, feeds: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> float:
    """The largest error against ONNX Runtime."""
    from nnstretch.bench.comparison.reference import reference_outputs
    from nnstretch.cli.sources import source_of_package
    from nnstretch.graph.reference import largest_error

    graph = (source_of_package(Path(source.model)) if source.is_package else source).load()
    ordered = {str(value.name): feeds[str(value.name)] for value in graph.graph.inputs}
    return largest_error(outputs, reference_outputs(graph, ordered))


def _plans_used(session: AdaptiveSession) -> dict[str, Any]:
    """Runs by plan, and the switches between plans."""
    history = session.history
    return {
        "runs": {name: sum(ran.plan == name and not ran.failure for ran in history) for name in session.plans},
        "failures": sum(bool(ran.failure) for ran in history),
        "switches": [asdict(switch) for switch in session.switches],
    }


def _plans_text(plans: dict[str, Any]) -> list[str]:
    runs = ", ".join(f"{count} by {name}" for name, count in plans["runs"].items())
    failed = f"; {plans['failures']} failed" if plans["failures"] else ""
    return [
        f"runs: {runs}{failed}",
        *(f"from run {s['attempt']} on {s['plan']}: {s['reason']}" for s in plans["switches"]),
    ]


def _latency_line(times: Latency, macs: int) -> str:
    rate = f"{2 * macs / (times.p50_ms * 1e6):.0f} GFLOP/s of {count_text(macs)} MACs"
    return f"latency p50 {times.p50_ms:.3f} ms, p90 {times.p90_ms:.3f} ms, min {times.min_ms:.3f} ms; {rate}"


def _error_line(error: float, allowed: float) -> str:
    judged = f"{'within' if error <= allowed else 'beyond'} the allowed {allowed:.0e}"
    return f"largest error against ONNX Runtime {error:.1e} of the output's range, {judged}"


def _show_outputs(report: Any, outputs: dict[str, np.ndarray]) -> None:
    shown = plain_table("output", "shape", "type", ">min", ">mean", ">max")
    for name, y in outputs.items():
        numbers = (f"{y.min():.4g}", f"{y.mean():.4g}", f"{y.max():.4g}") if y.size else ("", "", "")
        shown.add_row(name, "×".join(map(str, y.shape)), str(y.dtype), *numbers)
    report.show(shown)
