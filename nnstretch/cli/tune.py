"""`nnstretch tune`: measure the routines of every layer and choose."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnstretch.cli.console import reporting
from nnstretch.cli.options import (
    DesignFile,
    Engines,
    Json,
    Model,
    Processors,
    Shape,
    Threads,
    Weights,
    check_writable,
    parse_engines,
)
from nnstretch.errors import UsageError
from nnstretch.report.text import plain_table

if TYPE_CHECKING:
    from nnstretch.scheduler.plan import Plan


def tune(
    model: Model,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write the plan (JSON).", show_default=False)
    ] = None,
    processors: Processors = "cpu",
    threads: Threads = None,
    shape: Shape = None,
    weights: Weights = None,
    design: DesignFile = None,
    engines: Engines = None,
    fresh: Annotated[
        bool, typer.Option("--fresh/--resume", help="Measure again what was measured before, or go on from there.")
    ] = False,
    json: Json = False,
) -> None:
    """Measure the routines of every layer and select the fastest plan.

    What was measured before is reused: tuning that was interrupted goes on where it was, and a second model tunes faster.
    See `nnstretch profiles` for what there is.

    Example: nnstretch tune resnet50 --threads 1 -o plan.json
    """
    with reporting(as_json=json) as report:
        import numpy as np

        from nnstretch.cli.sources import make_source
        from nnstretch.compiler import build_processors, plan_model
        from nnstretch.scheduler.selectors import Elimination
        from nnstretch.scheduler.session import Session
        from nnstretch.settings import atomic_write

        source = make_source(model, shape, weights, design)
        if source.is_package:
            raise UsageError(f"{model} is a package, which is tuned already; give the model that it was made from")
        if output is not None:
            check_writable(output)
        graph = source.load()
        found = build_processors(processors, threads, parse_engines(engines))
        begin = time.perf_counter()
        with report.progress("Tuning") as told:
            compiled = plan_model(graph, found, fresh=fresh, progress=told)
        seconds = time.perf_counter() - begin
        with Session.from_compiled(compiled) as session:
            measured = float(np.median(session.time())) * 1e3
        plan, selection = compiled.plan, compiled.selection
        if output is not None:
            with atomic_write(output) as file:
                file.write(plan.to_json().encode())
        predicted = plan.predicted_ms
        report.show(
            _table(plan),
            f"tuned in {seconds:.1f} s; predicted {_ms(predicted)} ms (steps one after another), measured {measured:.3f} ms",
        )
        report.finish(
            {
                "tuning_s": seconds,
                "predicted_ms": predicted,
                "measured_ms": measured,
                "selector": Elimination.name,
                "optimal": selection.optimal if selection else None,
                "gap": selection.gap if selection else None,
                "layers": [
                    {
                        "name": step.layer,
                        "op": step.op,
                        "routine": step.routine,
                        "parameters": dict(step.parameters),
                        "cost_ms": step.cost_ms,
                    }
                    for step in plan.steps
                ],
            }
        )


def _table(plan: Plan) -> Any:
    total = plan.predicted_ms or sum(step.cost_ms or 0.0 for step in plan.steps) or 1.0
    shown = plain_table("layer", "op", "routine", "parameters", ">ms", ">share", ">GFLOP/s")
    for step in plan.steps:
        parameters = " ".join(f"{name}={value}" for name, value in step.parameters.items())
        cost = step.cost_ms
        shown.add_row(
            step.layer,
            step.op,
            step.routine,
            parameters,
            _ms(cost),
            "" if cost is None else f"{cost / total:.1%}",
            f"{2 * step.macs / (cost * 1e6):.0f}" if cost and step.macs else "",
        )
    return shown


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
