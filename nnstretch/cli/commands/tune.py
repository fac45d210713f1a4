"""`nnstretch tune`: measures the routines of every layer and selects a plan."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from nnstretch.api.options import CompileOptions
from nnstretch.cli.console import Reporter, reporting
from nnstretch.cli.options import (
    DesignFile,
    ImageSizeOption,
    Json,
    ModelToCompile,
    Seed,
    Weights,
    check_writable,
    option,
    with_options,
)
from nnstretch.cli.outputs import note_written
from nnstretch.cli.targets.options import OneAfterAnother
from nnstretch.cli.targets.several import for_each_target, path_for_target
from nnstretch.report.tables.runs import idle_text, placement_text, queue_names
from nnstretch.report.tables.text import ms_text, number_text, operator_text, parameters_text, plain_table
from nnstretch.scheduler.selection import SELECTORS, default_selector, selector_named
from nnstretch.training.data import usage

if TYPE_CHECKING:
    from nnstretch.cli.models.sources import Source
    from nnstretch.cli.tuning.accuracy import ValidationImages
    from nnstretch.cli.tuning.report import TuningRequest
    from nnstretch.compiler.processors import Processors
    from nnstretch.scheduler.parameter_search.explorer import Exploration
    from nnstretch.scheduler.plan.compiled import Compiled, PlacementReport
    from nnstretch.scheduler.plan.schema import Plan
    from nnstretch.scheduler.planner import ChoiceSpace
    from nnstretch.scheduler.selection.hybrid import HybridAnswer


SearchParameters = Annotated[
    Literal["default", "learned", "exhaustive"],
    option(
        "--search HOW",
        "Search of routine parameters: default (short lists and coordinate descent), learned (by a cost model) or exhaustive "
        "(all of them).",
    ),
]
Fresh = Annotated[
    bool,
    option(
        "--fresh/--resume",
        "--fresh measures every routine again; --resume reuses the measurements of the profile store.",
    ),
]
SelectorName = Annotated[
    str | None,
    option("--selector NAME", f"How routines are selected: {', '.join(SELECTORS)}.", shown=next(iter(SELECTORS))),
]
Limits = Annotated[
    list[str] | None,
    option(
        "--limit NAME=AMOUNT",
        "Limit of a resource: memory=200MB (weights and workspaces), error=0.001 (sum of the routines' relative "
        "errors) or, with --dtype hybrid and --data, accuracy=0.5 (points of top-1 lost against float32). Repeatable.",
    ),
]
Validation = Annotated[
    str | None,
    option("--data SET", f"Images for --limit and --pareto accuracy, which take their validation split: {usage()}."),
]
Front = Annotated[
    str | None,
    option(
        "--pareto latency,memory",
        "Show the Pareto front of latency and some of memory, error (sum of the routines' relative errors) and, with --data, "
        "accuracy (top-1, which is measured).",
    ),
]
MeasuredPlans = Annotated[
    int,
    option("--pareto-plans N", "Measure the top-1 of N plans at most for --pareto accuracy.", minimum=2),
]


@with_options(CompileOptions)
def tune_command(
    model: ModelToCompile,
    output: Annotated[
        list[Path] | None,
        option(
            "--output -o FILE",
            "Write the plan (.json), or a report with every layer's candidates, errors and failures (.html, .md, .csv, .svg, "
            ".png). Repeatable.",
        ),
    ] = None,
    *,
    options: CompileOptions,
    weights: Weights = None,
    design: DesignFile = None,
    image_size: ImageSizeOption = None,
    targets: OneAfterAnother = None,
    search: SearchParameters = "default",
    fresh: Fresh = False,
    selector: SelectorName = None,
    limit: Limits = None,
    data: Validation = None,
    pareto: Front = None,
    pareto_plans: MeasuredPlans = 16,
    explain: Annotated[bool, option("--explain", "Show every layer's candidates and costs.")] = False,
    compare: Annotated[
        bool,
        option(
            "--compare",
            "Run all selectors on the same costs. Differences are shares of a selector's own cost: to the cheapest answer "
            "(over the best), and to the proved lower bound of all answers (optimality).",
        ),
    ] = False,
    seed: Seed = 0,
    json: Json = False,
) -> int:
    """Measure the routines of every layer and select the fastest plan.

    The profile store (`nnstretch profiles`) keeps all measurements: an interrupted tuning resumes, and further models tune
    faster. `--search learned` searches more routine parameters with a cost model and keeps the best for later tunings.
    compile, run and bench take the plan with --plan. With --target, routines are measured on another machine, such as a phone
    or a board, by a runner that needs no Python; run and bench for this target then use what was measured. The plan of one of
    several targets has the target's name in that of its file.

    Example: nnstretch tune resnet50 --threads 1 -o plan.json
    """
    with reporting(as_json=json) as report:
        from nnstretch.cli.models.sources import Source
        from nnstretch.cli.tuning.report import ACCURACY, TuningRequest, check_accuracy, parse_front, parse_limits

        name = (selector_named(selector) if selector else default_selector()).name
        limits, traded = parse_limits(limit or ()), parse_front(pareto)
        points = limits.pop(ACCURACY, None)
        request = TuningRequest(name, explain, compare, traded, limits, seed, fresh, search, points, data, pareto_plans)
        chosen = targets or ["local"]
        for target in chosen:
            check_accuracy(request, options.dtype, target)

        def work(report: Reporter, target: str) -> int:
            outputs = [path_for_target(path, target, chosen) for path in output or []]
            _tune(report, Source(model, replace(options, target=target), weights, design, image_size), request, outputs)
            return 0

        return for_each_target(report, chosen, work)


def _tune(report: Reporter, source: Source, request: TuningRequest, outputs: Sequence[Path]) -> None:
    """Tunes for the target of the options; shows and writes the results."""
    from nnstretch.cli.tuning.report import split_outputs
    from nnstretch.compiler.processors import build_processors

    for path in outputs:
        check_writable(path)
    plans, reports = split_outputs(outputs)
    request = replace(request, report=bool(reports))
    if source.options.target == "local":
        _tune_on(report, source, request, build_processors(source.options), plans, reports)
        return
    _tune_there(report, source, request, plans, reports)


def _tune_there(
    report: Reporter, source: Source, request: TuningRequest, plans: Sequence[Path], reports: Sequence[Path]
) -> None:
    """Tunes for a target; refuses what cannot run there before anything is measured."""
    from nnstretch.bench.targets.models import check_for_target
    from nnstretch.cli.targets.options import check_unused
    from nnstretch.cli.targets.tuning import opened_target
    from nnstretch.compiler.compile import plan_model
    from nnstretch.devices.targets.base import TargetError, TransientTargetError

    options = source.options
    check_unused({"--engines": options.engines}, f"--target {options.target}, which runs native kernels only")
    graph = source.load()
    with opened_target(report, options) as target:
        usable = target.processors
        unmeasured = replace(usable, site=None, options=replace(usable.options, dtype=None))
        check_for_target(plan_model(graph, unmeasured, tune=False), source.model)
        try:
            target.do(lambda: _tune_on(report, source, request, usable, plans, reports))
        except TransientTargetError as error:
            raise TargetError(f"{error}; measurements are kept, and the next tuning goes on from there") from error


def _tune_on(
    report: Reporter,
    source: Source,
    request: TuningRequest,
    usable: Processors,
    plans: Sequence[Path],
    reports: Sequence[Path],
) -> None:
    """Tunes for processors."""
    from nnstretch.cli.tuning.accuracy import validation_images
    from nnstretch.cli.tuning.rates import step_rates
    from nnstretch.cli.tuning.report import (
        ACCURACY,
        accuracy_front_answer,
        disturbances,
        dtypes_answer,
        findings,
        requested_space,
        search_answer,
    )
    from nnstretch.compiler.compile import explored_costs
    from nnstretch.compiler.costs import open_profiler
    from nnstretch.compiler.saved_plan import plan_file
    from nnstretch.scheduler.planner import plan_of
    from nnstretch.scheduler.selection.hybrid import selected
    from nnstretch.support.other_programs import CoreWatch

    graph = source.load()
    watch = CoreWatch() if usable.site is None else None
    images = None if request.data is None else validation_images(graph, request.data)
    begin = time.perf_counter()
    searched: dict[str, Exploration] = {}
    with open_profiler(usable, fresh=request.fresh, exhaustive=request.search == "exhaustive") as costs:
        with report.progress("Tuning") as advance:
            if request.search == "learned":
                costs, searched = explored_costs(graph, usable, costs, advance)
            space = requested_space(graph, usable, request, costs, advance)
            found = selected(space, selector_named(request.selector))
        accuracy: dict[str, Any] = {}
        if images is not None and request.points is not None:
            found, accuracy = _accurate(report, space, found, images, request)
        selection, compiled = found.best, plan_of(space, found.best)
        seconds = time.perf_counter() - begin
        measured = costs.site.seconds(compiled)
        about = {"model": Path(source.model).name, "target": source.options.target}
        rates = step_rates(compiled.plan, is_local=usable.site is None)
        answer = {**about, **_answer(compiled, seconds, measured, request, rates), **disturbances(watch, costs, usable)}
        answer |= dtypes_answer(space, found, source.options.dtype) | accuracy
        report.note(costs.site.note)
        answer |= {"search": search_answer(request, searched), "measurements": costs.measurements}
        with report.progress("Comparing") as advance:
            answer |= findings(space, selection, request, advance)
            if images is not None and ACCURACY in request.traded:
                answer |= accuracy_front_answer(space, found, images, request, advance)
    written = _write(answer, plan_file(compiled.plan, space, selection, usable), plans, reports)
    _show(report, answer, compiled, explain=request.explain)
    report.note(source.assumptions)
    note_written(report, written)
    report.finish(answer)


def _accurate(
    report: Reporter, space: ChoiceSpace, found: HybridAnswer, images: ValidationImages, request: TuningRequest
) -> tuple[HybridAnswer, dict[str, Any]]:
    """The answers with the fastest accurate one as the best, and what goes into the JSON answer."""
    from nnstretch.cli.tuning.accuracy import accurate_answer
    from nnstretch.cli.tuning.report import accuracy_answer

    assert request.points is not None
    with report.progress("Measuring accuracies") as advance:
        accurate = accurate_answer(space, found, images, request.points, advance)
    answer = accuracy_answer(accurate, request.points, len(images.dataset.validation))
    return replace(found, best=accurate.answer), answer


def _answer(
    compiled: Compiled,
    seconds: float,
    runs: Sequence[float],
    request: TuningRequest,
    rates: Sequence[Mapping[str, float | None]],
) -> dict[str, Any]:
    plan, selection, placement = compiled.plan, compiled.selection, compiled.placement
    assert selection is not None
    predicted = selection.cost * 1e3 if plan.predicted_ms is None else plan.predicted_ms
    return {
        "tuning_s": seconds,
        "predicted_ms": predicted if placement is None else placement.seconds * 1e3,
        "measured_ms": statistics.median(runs) * 1e3,
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
                **rate,
            }
            for step, processor, rate in zip(plan.steps, queue_names(plan), rates, strict=True)
        ],
    }


def _placement(report: PlacementReport) -> dict[str, Any]:
    return {
        "pays": report.pays,
        "together_ms": report.together * 1e3,
        "bound_ms": report.bound * 1e3,
        "alone_ms": {name: seconds * 1e3 for name, seconds in report.alone.items()},
        "splits": {layer: dict(shares) for layer, shares in report.splits.items()},
        "bands": {section: dict(shares) for section, shares in report.bands.items()},
    }


def _write(answer: dict[str, Any], plan: str, plans: Sequence[Path], reports: Sequence[Path]) -> list[Path]:
    """Writes the plan and reports; returns all files."""
    from nnstretch.cli.benchmarking.engine_comparison import write_answer
    from nnstretch.support.settings import write_text

    for path in plans:
        write_text(path, plan)
    return [*plans, *(write_answer(reports, answer) if reports else [])]


def _show(report: Reporter, answer: dict[str, Any], compiled: Compiled, *, explain: bool) -> None:
    from nnstretch.report.tables.selection import (
        accuracy_text,
        amount_text,
        choice_text,
        comparison_table,
        difference_text,
        dtypes_text,
        explanation_table,
        front_table,
    )

    report.show(_table(compiled.plan, answer["layers"]))
    if explain:
        report.show(explanation_table(answer["explanation"]))
    if "comparison" in answer:
        report.show(comparison_table(answer["comparison"]))
    if "pareto" in answer:
        report.show(front_table(answer["pareto"]))
    needs = "".join(f"; {name} {amount_text(name, amount)}" for name, amount in answer.get("amounts", {}).items())
    if compiled.placement is not None:
        report.show(placement_text(compiled.placement, compiled.plan))
    if answer["dtypes"]["predicted_ms"]:
        report.show(dtypes_text(answer["dtypes"]))
    if "accuracy" in answer:
        report.show(accuracy_text(answer["accuracy"]))
    report.note(idle_text(compiled.plan.idle_processors))
    how = "at the same time" if compiled.placement is not None and compiled.placement.pays else "one after another"
    report.show(
        f"tuned for {','.join(compiled.plan.processors)} in {answer['tuning_s']:.1f} s; "
        f"predicted {ms_text(answer['predicted_ms'])} ms (steps {how}), measured {answer['measured_ms']:.3f} ms{needs}"
    )
    report.show(choice_text(answer))
    report.note(difference_text(answer))
    for name, found in answer["search"]["processors"].items():
        report.note(
            f"{name}: searched {found['candidates']} settings by measuring {found['measured']}; "
            f"the last predictions missed by {found['spread']:.1%}"
        )


def _table(plan: Plan, layers: Sequence[Mapping[str, Any]]) -> Any:
    """Every step of a plan with its time and rate; `layers` are those of the answer."""
    total = plan.predicted_ms or sum(step.cost_ms or 0.0 for step in plan.steps) or 1.0
    places = queue_names(plan)
    where = ("processor",) if len(set(places)) > 1 else ()
    columns = ("layer", "op", *where, "routine", "parameters", ">ms", ">share", ">GFLOP/s", ">of peak")
    shown = plain_table(*columns, optional=("op", "of peak", "share", "GFLOP/s"))
    for step, place, layer in zip(plan.steps, places, layers, strict=True):
        cost = step.cost_ms
        shown.add_row(
            step.layer,
            operator_text(step.op),
            *((place,) if where else ()),
            step.routine,
            parameters_text(step.parameters),
            ms_text(cost),
            "" if cost is None else f"{cost / total:.1%}",
            number_text(layer["gflops"], ".0f"),
            number_text(layer["peak_share"], ".0%"),
        )
    return shown
