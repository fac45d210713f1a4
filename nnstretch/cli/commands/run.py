"""`nnstretch run`: run a model or package, time it, trace it, check it."""

from __future__ import annotations

from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from nnstretch.api.options import CompileOptions
from nnstretch.cli.console import Reporter, reporting
from nnstretch.cli.options import (
    DesignFile,
    ImageSizeOption,
    Json,
    Model,
    Seed,
    Weights,
    check_distinct,
    check_format,
    check_writable,
    option,
    with_options,
)
from nnstretch.cli.outputs import note_written, show_outputs
from nnstretch.cli.running.images import answer_json, image_request
from nnstretch.cli.running.rebalancing import (
    check_rebalance,
    is_package_wanted,
    measured_again_json,
    rebalance_json,
    save_package,
)
from nnstretch.cli.running.request import DEFAULT_RUNS, DEFAULT_SECONDS, RunRequest, parse_inputs
from nnstretch.cli.running.timelines import check_timeline, write_timeline
from nnstretch.cli.targets.options import OneAfterAnother
from nnstretch.cli.targets.several import for_each_target
from nnstretch.errors import UsageError
from nnstretch.report.tables.runs import (
    fallback_text,
    fewer_streams_text,
    idle_text,
    placement_text,
    timeline_table,
    timeline_text,
)
from nnstretch.report.tables.text import count_text

if TYPE_CHECKING:
    import numpy as np

    from nnstretch.bench.timing import Latency
    from nnstretch.cli.models.sources import Source
    from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession
    from nnstretch.scheduler.runtime.base_session import Session
    from nnstretch.scheduler.runtime.critical_path import RunSummary
    from nnstretch.scheduler.runtime.stream_session import StreamSession
    from nnstretch.vision.answer import ImageInput

_DETECTION = "Detection"
_DISTURBED = 2
"""A 90th percentile that is this multiple of the least latency is of a machine that other programs use."""

Inputs = Annotated[list[str] | None, option("--input -i x=FILE.npy", "An input; all are random if none is given.")]
Image = Annotated[
    Path | None,
    option("--image FILE", "The image that the network reads: shows classes, or the boxes of a detector."),
]
Confidence = Annotated[
    float | None, option("--conf P", "Least probability of a detector's box.", shown="0.25", panel=_DETECTION)
]
Overlap = Annotated[
    float | None,
    option(
        "--iou P", "Largest overlap of two boxes of a class (intersection over union).", shown="0.7", panel=_DETECTION
    ),
]
Output = Annotated[
    Path | None,
    option(
        "--output -o FILE",
        "Write the outputs (.npz), draw them on the image (.png, .jpg, .webp), or with --rebalance write the package (.nns).",
    ),
]
Runs = Annotated[
    int | None,
    option(
        "--runs -n N",
        "Timed runs, however long they take.",
        minimum=1,
        shown=f"{DEFAULT_RUNS}, or those of {DEFAULT_SECONDS:g} seconds",
    ),
]
Timeline = Annotated[
    Path | None,
    option(
        "--timeline FILE",
        "Write the timeline of one run as a page (.html), a picture (.svg) or a trace for Perfetto (.json), and show its "
        "critical path.",
    ),
]
Check = Annotated[bool, option("--check", "Compare the outputs with ONNX Runtime's.")]
MaxError = Annotated[
    float | None,
    option(
        "--max-error E",
        "Largest output error that --check allows, relative to the output's range. By default 5 times --tolerance, and for a "
        "network with n int8 layers 2·√n steps of 1/255 more, as results may round up or down.",
        shown="by tolerance and int8 layers",
        minimum=0.0,
    ),
]

LiteRtLibrary = Annotated[
    Path | None,
    option(
        "--litert-library FILE",
        "With --target: LiteRT's library (libLiteRt.so) for it, for models with LiteRT processors.",
        shown="the target's own",
    ),
]


@with_options(CompileOptions)
def run_command(
    model: Model,
    inputs: Inputs = None,
    image: Image = None,
    confidence: Confidence = None,
    overlap: Overlap = None,
    output: Output = None,
    runs: Runs = None,
    timeline: Timeline = None,
    check: Check = False,
    max_error: MaxError = None,
    *,
    options: CompileOptions,
    weights: Weights = None,
    design: DesignFile = None,
    image_size: ImageSizeOption = None,
    targets: OneAfterAnother = None,
    litert_library: LiteRtLibrary = None,
    seed: Seed = 0,
    json: Json = False,
) -> int:
    """Run a model or package and report its latency, or with --streams its throughput.

    With --image, say what the network sees: the most probable classes, or the boxes of a detector. With --check, exit status 1
    means that the outputs differ from ONNX Runtime's. With --target, compile the model for another machine and run it there by
    a runner that needs no Python; the outputs are always compared.

    Example: nnstretch run resnet50.nns --input x=image.npy -o outputs.npz --timeline timeline.html
    """
    with reporting(as_json=json) as report:
        from nnstretch.cli.models.sources import Source

        if options.streams is not None and timeline is not None:
            raise UsageError("--timeline shows a single run; leave it or --streams out")
        chosen = targets or ["local"]
        if max_error is not None and not check and chosen == ["local"]:
            raise UsageError("--max-error needs --check; add that, or leave --max-error out")
        if litert_library is not None and chosen == ["local"]:
            raise UsageError("--litert-library is for other machines; add --target, or leave it out")
        package = output if is_package_wanted(output, options.rebalance) else None
        if options.rebalance:
            check_rebalance(chosen)
        shown = None if package else output
        asked = image_request(image, confidence, overlap, shown, has_inputs=bool(inputs))
        files = parse_inputs(inputs or [])
        request = RunRequest(
            files, asked, shown, runs, timeline, options.largest_error, max_error, seed, litert_library, package
        )
        if timeline is not None:
            check_timeline(timeline)
        if shown is not None and (asked is None or asked.drawn is None):
            pictures = "" if asked is None else "pictures are written as .png, .jpg or .webp, and "
            check_format(shown, f"{pictures}outputs are", ".npz")
        for path, name in ((output, "-o"), (timeline, "--timeline")):
            if path is not None:
                check_distinct(path, model, weights, design, image, *files.values(), option=name)
                check_writable(path, name)
                if len(dict.fromkeys(chosen)) > 1:
                    raise UsageError(f"{name} holds one run; name one --target, or leave {name} out")

        def work(report: Reporter, target: str) -> int:
            source = Source(model, replace(options, target=target), weights, design, image_size)
            if target == "local":
                return int(not _run_here(report, source, request, check))
            from nnstretch.cli.targets.run import run_on_target

            return int(not run_on_target(report, source, request))

        return for_each_target(report, chosen, work)


def _run_here(report: Reporter, source: Source, request: RunRequest, check: bool) -> bool:
    """Runs a model on this machine; shows and writes what it gave.

    Returns:
        Whether the outputs are as ONNX Runtime's, if they are to be compared.
    """
    from nnstretch.scheduler.runtime.stream_session import StreamSession

    with report.progress("Compiling") as advance:
        session = source.open(advance)
    with session:
        image = _image(source, session, request)
        feeds = _feeds(session, request) if image is None else image.feeds
        outputs = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
        answer = show_outputs(report, request, image, outputs)
        error = _error(source, feeds, outputs) if check else None
        if isinstance(session, StreamSession):
            times = _time_streams(report, session, feeds, request.most_runs)
            report.note(fewer_streams_text(source.options.streams or 1, session.arrangement))
        else:
            times = _time_runs(report, session, feeds, request, source.model)
        plan = session.plan
        rebalanced: dict[str, Any] = {}
        if source.options.rebalance:
            rebalanced = rebalance_json(report, session) or measured_again_json(report, source, session)
        if request.package is not None:
            rebalanced |= save_package(report, source, session, request.package)
    report.note(source.assumptions)
    report.note(idle_text(plan.idle_processors))
    report.note(fallback_text(plan.fallback_layers))
    judgement = request.judge(error, plan, outputs)
    if judgement is not None:
        report.show(str(judgement))
    report.finish(
        {
            "model": source.model,
            **times,
            **rebalanced,
            **answer_json(answer),
            "macs": plan.macs,
            "outputs": {name: {"shape": list(y.shape), "dtype": str(y.dtype)} for name, y in outputs.items()},
            "fallback_layers": list(plan.fallback_layers),
            "max_rel_error": error,
            "max_error": None if judgement is None else judgement.allowed,
            "passed": None if judgement is None else judgement.passes,
        }
    )
    return judgement is None or judgement.passes


def _time_runs(
    report: Reporter, session: Session, feeds: dict[str, np.ndarray], request: RunRequest, model: str
) -> dict[str, Any]:
    """Times one run after another, shows latencies, and returns them as JSON."""
    from nnstretch.bench.timing import latency
    from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession

    seconds = session.time(feeds, warmup=3, runs=request.most_runs, budget=request.budget)
    times, timeline = latency([seconds]), request.timeline
    summary = None if timeline is None else _write_timeline(timeline, model, session, feeds)
    if (placement := session.compiled.placement) is not None:
        report.note(placement_text(placement, session.plan))
    adaptive = session if isinstance(session, AdaptiveSession) else None
    processors = "" if adaptive else ",".join(session.plan.processors)
    report.show(latency_line(times, session.plan.macs, session.plan.product_macs, processors))
    report.note(request.cut_short_text(len(seconds)))
    plans = _plans_used(report, adaptive) if adaptive else None
    if summary is not None:
        report.show(timeline_table(summary), timeline_text(summary))
        note_written(report, [] if timeline is None else [timeline])
    counts = {"runs": len(seconds), "plans": plans}
    return {**times.to_json(), **counts, "timeline": None if summary is None else summary.to_json()}


def _time_streams(report: Reporter, session: StreamSession, feeds: dict[str, np.ndarray], runs: int) -> dict[str, Any]:
    """Times runs with several inputs in flight, shows the images per second, and returns them as JSON."""
    import time

    from nnstretch.bench.rates import arrangement_json
    from nnstretch.bench.timing import significant
    from nnstretch.report.tables.runs import arrangement_text, memory_text

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
        **arrangement_json(arrangement),
    }


def _image(source: Source, session: Session, request: RunRequest) -> ImageInput | None:
    """The image that the network is to read, if one is given."""
    if request.image is None:
        return None
    inputs = [(one.name, one.shape) for one in session.get_inputs()]
    return request.image.read(source, inputs, {one.name: one.shape for one in session.get_outputs()})


def _feeds(session: Session, request: RunRequest) -> dict[str, np.ndarray]:
    """Inputs from files, or all of them random; the session checks names and shapes."""
    from nnstretch.bench.comparison.subject import plan_feeds
    from nnstretch.cli.models.sources import read_feeds

    if not request.inputs:
        return plan_feeds(session.plan, request.seed, session.compiled.models)
    return read_feeds(request.inputs, [one.name for one in session.get_inputs()])


def _write_timeline(path: Path, model: str, session: Session, feeds: dict[str, np.ndarray]) -> RunSummary:
    """Writes the timeline of a run; returns its critical path."""
    from nnstretch.scheduler.runtime.critical_path import run_summary

    found = session.profile(feeds)
    summary = run_summary(session.plan, found)
    write_timeline(path, Path(model).name, found, summary)
    return summary


def _error(source: Source, feeds: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> float:
    """The largest error against ONNX Runtime."""
    from nnstretch.bench.comparison.subject import reference_outputs
    from nnstretch.cli.models.sources import source_of_package
    from nnstretch.graph.reference import largest_error

    graph = (source_of_package(Path(source.model)) if source.is_package else source).load()
    ordered = {str(value.name): feeds[str(value.name)] for value in graph.graph.inputs}
    return largest_error(outputs, reference_outputs(graph, ordered))


def _plans_used(report: Reporter, session: AdaptiveSession) -> dict[str, Any]:
    """Shows the runs of every plan and the switches between plans, and returns them as JSON."""
    history = session.history
    plans: dict[str, Any] = {
        "runs": {name: sum(ran.plan == name and not ran.failure for ran in history) for name in session.plans},
        "failures": sum(bool(ran.failure) for ran in history),
        "switches": [asdict(switch) for switch in session.switches],
    }
    runs = ", ".join(f"{count} by {name}" for name, count in plans["runs"].items())
    failed = f"; {plans['failures']} failed" if plans["failures"] else ""
    report.show(f"runs: {runs}{failed}")
    report.show(*(f"from run {switch.attempt} on {switch.plan}: {switch.reason}" for switch in session.switches))
    return plans


def latency_line(times: Latency, macs: int, product_macs: int = 0, processors: str = "") -> str:
    """One line on latencies, with a remark if other programs used the machine.

    Args:
        times: of runs.
        macs: of the network's convolutions and dense layers.
        product_macs: of its products of matrices that are computed at run time.
        processors: that the runs were on; "" if they differ.
    """
    rate = f"{2 * (macs + product_macs) / (times.p50_ms * 1e6):.0f} GFLOP/s of {count_text(macs)} MACs"
    rate += f" and {count_text(product_macs)} in products of run-time matrices" if product_macs else ""
    on = f" on {processors}:" if processors else ""
    line = f"latency{on} p50 {times.p50_ms:.3f} ms, p90 {times.p90_ms:.3f} ms, min {times.min_ms:.3f} ms; {rate}"
    return line if times.p90_ms < _DISTURBED * times.min_ms else f"{line}; the machine was disturbed"
