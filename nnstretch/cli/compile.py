"""`nnstretch compile`: a model becomes a package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nnstretch.cli.console import reporting
from nnstretch.cli.options import (
    DesignFile,
    Json,
    Model,
    NoTune,
    Processors,
    Shape,
    Threads,
    Weights,
    check_writable,
)
from nnstretch.errors import UsageError
from nnstretch.report.text import count_text


def compile_command(
    model: Model,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="The package (.nns).", show_default="the model's name"),
    ] = None,
    processors: Processors = "cpu",
    threads: Threads = None,
    shape: Shape = None,
    weights: Weights = None,
    design: DesignFile = None,
    no_tune: NoTune = False,
    json: Json = False,
) -> None:
    """Plan a model for processors and write it as a package that `run` starts at once.

    Example: nnstretch compile resnet50.onnx --processors cpu:0-3 -o resnet50.nns
    """
    with reporting(as_json=json) as report:
        from nnstretch.cli.sources import make_source

        source = make_source(model, shape, weights, design)
        if source.is_package:
            raise UsageError(f"{model} is a package already; give the model that it was made from")
        path = check_writable(output or Path(f"{Path(model.partition(':')[0]).stem}.nns"))
        with report.progress("Compiling") as told:
            session = source.compile(processors, threads, tune=not no_tune, progress=told)
        with session:
            plan = session.plan
            about = {"source": source.to_json(), "processors": processors, "tuned": not no_tune, "macs": plan.macs}
            session.save(path, about)
        size = path.stat().st_size
        report.show(
            f"{path}: {len(plan.steps)} steps in {len(plan.subgraphs)} sub-graphs, "
            f"{count_text(plan.macs)} MACs, {size / 1e6:.1f} MB"
        )
        if plan.fallback_layers:
            report.note(f"{len(plan.fallback_layers)} layers run on ONNX Runtime: {', '.join(plan.fallback_layers)}")
        report.finish(
            {
                "file": str(path),
                "bytes": size,
                "macs": plan.macs,
                "steps": len(plan.steps),
                "subgraphs": len(plan.subgraphs),
                "predicted_ms": plan.predicted_ms,
                "fallback_layers": list(plan.fallback_layers),
            }
        )
