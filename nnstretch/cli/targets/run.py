"""`nnstretch run --target`: one model, compiled here and run on another machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.bench.targets.measure import Measured
from nnstretch.bench.targets.timelines import target_timeline
from nnstretch.cli.console import Reporter
from nnstretch.cli.models.sources import Source, read_feeds
from nnstretch.cli.outputs import show_outputs
from nnstretch.cli.running.images import answer_json
from nnstretch.cli.running.request import RunRequest
from nnstretch.cli.running.timelines import write_timeline
from nnstretch.cli.targets.benchmark import TargetJob, measure_on_targets
from nnstretch.cli.targets.options import check_unused
from nnstretch.devices.targets.results import BenchOptions
from nnstretch.errors import ModelError
from nnstretch.graph.layers import graph_inputs, graph_outputs
from nnstretch.passes import optimize
from nnstretch.report.tables.targets import few_runs_text, targets_table

if TYPE_CHECKING:
    from nnstretch.vision.answer import ImageInput


def run_on_target(report: Reporter, source: Source, request: RunRequest) -> bool:
    """Runs a model on the target of its source; shows and writes what it gave.

    Returns:
        Whether the outputs are as ONNX Runtime's, as far as they can be compared.

    Raises:
        NNStretchError: what was found, what was wanted and what to do.
    """
    chosen = source.options
    fixed = {name: getattr(chosen, name) for name in ("streams", "plans", "policy", "engines")}
    check_unused({f"--{name}": value for name, value in fixed.items()}, f"--target {chosen.target}")
    image = _image(source, request)
    feeds = read_feeds(request.inputs, ())
    if image is not None:
        feeds.update(image.feeds)
    timing = BenchOptions(runs=request.most_runs, seed=request.seed, timeline=request.timeline is not None)
    job = TargetJob(
        [source],
        timing,
        request.seed,
        feeds=feeds or None,
        every_plan=False,
        litert_library=request.litert_library,
    )
    (run,) = measure_on_targets(report, [chosen.target], job)
    (measured,) = run.measured
    if measured.result.error is not None:
        raise ModelError(f"{source.model} failed on {run.target}: {measured.result.error}")
    answer = show_outputs(report, request, image, measured.outputs)
    timeline = target_timeline(measured.model, measured.result)
    if request.timeline is not None and timeline is not None:
        write_timeline(request.timeline, Path(source.model).name, timeline, None)
    report.show(targets_table([run]))
    report.note(few_runs_text(run, "--runs"))
    judgement = request.judge(measured.error, measured.model.plan, measured.outputs)
    passed = judgement is None or judgement.passes
    if judgement is not None:
        report.show(str(judgement))
    report.finish({**_answer(run.target, measured, passed), **answer_json(answer)})
    return passed


def _image(source: Source, request: RunRequest) -> ImageInput | None:
    """The image that the network is to read, if one is given."""
    if request.image is None:
        return None
    graph = optimize(source.load())
    inputs = [(name, kind.shape) for name, kind in graph_inputs(graph)]
    return request.image.read(source, inputs, {name: kind.shape for name, kind in graph_outputs(graph)})


def _answer(target: str, measured: Measured, passed: bool) -> dict[str, Any]:
    outputs = {name: {"shape": list(y.shape), "dtype": str(y.dtype)} for name, y in measured.outputs.items()}
    return {"target": target, **measured.to_json(), "outputs": outputs, "passed": passed}
