"""`nnstretch tune`: measures the routines of every layer and selects a plan."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnstretch.api.options import CompileOptions
from nnstretch.cli.console import Reporter, reporting
from nnstretch.cli.options import DesignFile, Json, Model, SearchParameters, Seed, Weights, check_writable, with_options
from nnstretch.errors import UsageError
from nnstretch.report.tables.placement import placement_text, queue_names
from nnstretch.report.tables.text import plain_table
from nnstretch.scheduler.selection import SELECTORS

if TYPE_CHECKING:
    from nnstretch.cli.sources import Source
    from nnstretch.cli.tuning_report import TuningRequest
    from nnstretch.scheduler.parameter_search.explorer import Exploration
    from nnstretch.scheduler.placement.report import PlacementReport
    from nnstretch.scheduler.plan.compiled import Compiled
    from nnstretch.scheduler.plan.schema import Plan


Fresh = Annotated[
    bool, typer.Option("--fresh/--resume", help="Measure again, or reuse the measurements of the profile store.")
]
SelectorName = Annotated[
    str | None,
    typer.Option(
        "--selector",
        metavar="NAME",
        help=f"How routines are selected: {', '.join(SELECTORS)}.",
        show_default=next(iter(SELECTORS)),
    ),
]
Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        metavar="NAME=AMOUNT",
        help="Limit of a resource: memory=200MB (weights and workspaces) or accuracy=0.001 (sum of the routines' relative "
        "errors). Repeatable.",
        show_default=False,
    ),
]
Front = Annotated[
    str | None,
    typer.Option(
        "--pareto",
        metavar="latency,memory",
        help="Show the Pareto front of latency and memory, accuracy or both.",
        show_default=False,
    ),
]


@with_options(CompileOptions, without=("tune", "plan", "streams", "plans", "policy"))
def tune_command(
    model: Model,
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the plan (JSON), or a chart (.svg) or report (.html) of --compare, --pareto and --explain. "
            "Repeatable.",
            show_default=False,
        ),
    ] = None,
    *,
    options: CompileOptions,
    weights: Weights = None,
    design: DesignFile = None,
    search: SearchParameters = "default",
    fresh: Fresh = False,
    selector: SelectorName = None,
    limit: Limits = None,
    pareto: Front = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show every layer's candidates and costs.")] = False,
    compare: Annotated[bool, typer.Option("--compare", help="Run all selectors on the same costs.")] = False,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Measure the routines of every layer and select the fastest plan.

    The profile store (`nnstretch profiles`) keeps all measurements: an interrupted tuning resumes, and further models tune
    faster. `--search learned` searches more routine parameters with a cost model and keeps the best for later tunings.
    compile, run and bench take the plan with --plan.

    Example: nnstretch tune resnet50 --threads 1 -o plan.json
    """
    with reporting(as_json=json) as report:
        from nnstretch.cli.sources import Source
        from nnstretch.cli.tuning_report import parse_request

        request = parse_request(
            selector,
            explain=explain,
            compare=compare,
            front=pareto,
            limits=limit or (),
            seed=seed,
            search=search,
            fresh=fresh,
        )
        source = Source(model, options, weights, design)
        if source.is_package:
            raise UsageError(f"{model} is a package with a fixed plan; give the model that it was made from")
        _tune(report, source, request, output or [])


def _tune(
    report: Reporter,
    source: Source,
    request: TuningRequest,
    outputs: Sequence[Path],
) -> None:
    from nnstretch.cli.tuning_report import chosen_selector, findings, requested_space, search_answer, split_outputs
    from nnstretch.compiler.costs import open_profiler
    from nnstretch.compiler.processors import build_processors
    from nnstretch.compiler.saved_plan import plan_file
    from nnstretch.compiler.spaces import explored_costs
    from nnstretch.scheduler.planner import plan_of

    plans, pictures = split_outputs(outputs)
    if pictures and not (request.compare or request.traded or (request.explain and pictures[0].suffix == ".html")):
        raise UsageError(f"there is nothing to draw in {pictures[0]}; add --compare, --pareto or (.html) --explain")
    for path in outputs:
        check_writable(path)
    graph, options = source.load(), source.options
    usable = build_processors(options.processors, options.threads, options.engines, options.tolerance, options.target)
    begin = time.perf_counter()
    searched: dict[str, Exploration] = {}
    with open_profiler(usable, fresh=request.fresh, exhaustive=request.search == "exhaustive") as costs:
        with report.progress("Tuning") as advance:
            if request.search == "learned":
                costs, searched = explored_costs(graph, usable, costs, advance)
            space = requested_space(graph, usable, request, costs, advance)
            selection = chosen_selector(request).select(space.problem)
            compiled = plan_of(space, selection)
        seconds = time.perf_counter() - begin
        answer = _answer(compiled, seconds, request) | {"search": search_answer(request, searched)}
        with report.progress("Comparing") as advance:
            answer |= findings(space, selection, request, advance)
    _write(answer, plan_file(compiled.plan, space, selection, usable), Path(source.model).name, plans, pictures)
    _show(report, answer, compiled)
    report.finish(answer)


def _answer(compiled: Compiled, seconds: float, request: TuningRequest) -> dict[str, Any]:
    import numpy as np

    from nnstretch.scheduler.runtime.session import PlanSession

    with PlanSession.from_compiled(compiled) as session:
        measured = float(np.median(session.time())) * 1e3
    plan, selection, placement = compiled.plan, compiled.selection, compiled.placement
    assert selection is not None
    predicted = selection.cost * 1e3 if plan.predicted_ms is None else plan.predicted_ms
    return {
        "tuning_s": seconds,
        "predicted_ms": predicted if placement is None else placement.seconds * 1e3,
        "measured_ms": measured,
        "selector": request.selector,
        "optimal": selection.optimal,
        "gap": selection.gap,
        "placement": None if placement is None else _placement(placement),
        "layers": [
            {
                "name": step.layer,
                "op": step.op,
                "processor": processor,
                "routine": step.routine,
                "parameters": dict(step.parameters),
                "cost_ms": step.cost_ms,
            }
            for step, processor in zip(plan.steps, queue_names(plan), strict=True)
        ],
    }


def _placement(report: PlacementReport) -> dict[str, Any]:
    return {
        "pays": report.pays,
        "together_ms": report.together * 1e3,
        "bound_ms": report.bound * 1e3,
        "alone_ms": {name: seconds * 1e3 for name, seconds in report.alone.items()},
        "splits": {layer: dict(shares) for layer, shares in report.splits.items()},
    }


def _write(answer: dict[str, Any], plan: str, model: str, plans: Sequence[Path], pictures: Sequence[Path]) -> None:
    from nnstretch.report.charts.selection import selection_picture
    from nnstretch.report.pages.selection import selection_html
    from nnstretch.support.settings import write_text

    for path in plans:
        write_text(path, plan)
    for path in pictures:
        write_text(path, selection_html(answer, model) if path.suffix == ".html" else selection_picture(answer))


def _show(report: Reporter, answer: dict[str, Any], compiled: Compiled) -> None:
    from nnstretch.report.tables.selection import (
        amount_text,
        certainty_text,
        comparison_table,
        explanation_table,
        front_table,
    )

    report.show(_table(compiled.plan))
    for key, table in (("explanation", explanation_table), ("comparison", comparison_table), ("pareto", front_table)):
        if key in answer:
            report.show(table(answer[key]))
    needs = "".join(f", {name} {amount_text(name, amount)}" for name, amount in answer.get("amounts", {}).items())
    if compiled.placement is not None:
        report.show(placement_text(compiled.placement, compiled.plan))
    how = "at the same time" if compiled.placement is not None and compiled.placement.pays else "one after another"
    report.show(
        f"tuned in {answer['tuning_s']:.1f} s; predicted {_ms(answer['predicted_ms'])} ms (steps {how}), "
        f"measured {answer['measured_ms']:.3f} ms; {answer['selector']}: "
        f"{certainty_text(answer['optimal'], answer['gap'])}{needs}"
    )
    for name, found in answer["search"]["processors"].items():
        report.note(
            f"{name}: searched {found['candidates']} settings by measuring {found['measured']}; "
            f"the last predictions missed by {found['spread']:.1%}"
        )


def _table(plan: Plan) -> Any:
    total = plan.predicted_ms or sum(step.cost_ms or 0.0 for step in plan.steps) or 1.0
    places = queue_names(plan)
    where = ("processor",) if len(set(places)) > 1 else ()
    shown = plain_table("layer", "op", *where, "routine", "parameters", ">ms", ">share", ">GFLOP/s")
    for step, place in zip(plan.steps, places, strict=True):
        parameters = " ".join(f"{name}={value}" for name, value in step.parameters.items())
        cost = step.cost_ms
        shown.add_row(
            step.layer,
            step.op,
            *((place,) if where else ()),
            step.routine,
            parameters,
            _ms(cost),
            "" if cost is None else f"{cost / total:.1%}",
            f"{2 * step.macs / (cost * 1e6):.0f}" if cost and step.macs else "",
        )
    return shown


def _ms(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
