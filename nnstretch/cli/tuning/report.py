"""What `nnstretch tune` does beside choosing: limits, explanations, comparisons of selectors and Pareto fronts."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.api.options import HYBRID
from nnstretch.cli.options import parse_assignments
from nnstretch.cli.outputs import check_endings
from nnstretch.errors import UsageError
from nnstretch.support.sizes import parse_bytes

if TYPE_CHECKING:
    import onnx_ir as ir

    from nnstretch.cli.tuning.accuracy import ValidationImages
    from nnstretch.compiler.processors import Processors
    from nnstretch.scheduler.measurement.profiler import Profiler
    from nnstretch.scheduler.parameter_search.explorer import Exploration
    from nnstretch.scheduler.parameter_search.thoroughness import Search
    from nnstretch.scheduler.planner import ChoiceSpace
    from nnstretch.scheduler.selection.accuracy import AccurateAnswer
    from nnstretch.scheduler.selection.hybrid import HybridAnswer
    from nnstretch.scheduler.selection.problem import Assignment
    from nnstretch.support.other_programs import CoreWatch
    from nnstretch.support.progress import Progress

LATENCY = "latency"
ACCURACY = "accuracy"
"""Top-1: limited by --limit, and an objective of --pareto."""
_PLAN_ENDING = ".json"
_NUMBER = re.compile(r"[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?")


@dataclass(frozen=True)
class TuningRequest:
    """Options of `nnstretch tune` beside those of compiling.

    Attributes:
        selector: name of the selector that chooses.
        explain: show every layer's candidates.
        report: a report is written, which has them, too.
        compare: run all selectors on the same costs.
        traded: objectives beside latency of the Pareto front: resources and `ACCURACY`.
        limits: largest amount of each resource.
        seed: of the selector.
        fresh: measure again what the profile store has.
        search: how thoroughly routine parameters are searched.
        points: points of top-1 that a hybrid may lose against float32; None: no limit.
        data: the data set whose validation images top-1 is measured on.
        measured_plans: number of plans at most whose top-1 is measured for the Pareto front.
    """

    selector: str
    explain: bool
    compare: bool
    traded: tuple[str, ...]
    limits: dict[str, float]
    seed: int
    fresh: bool
    search: Search
    points: float | None = None
    data: str | None = None
    measured_plans: int = 16
    report: bool = False

    @property
    def resources(self) -> tuple[str, ...]:
        """All resources whose amounts are needed."""
        from nnstretch.scheduler.selection import SELECTORS, selector_class
        from nnstretch.scheduler.selection.resources import ERROR

        selectors = SELECTORS if self.compare else (self.selector,)
        compared = (resource for name in selectors for resource in selector_class(name).resources)
        traded = [ERROR if name == ACCURACY else name for name in self.traded]
        return tuple(dict.fromkeys((*traded, *self.limits, *compared)))


def parse_limits(texts: Sequence[str]) -> dict[str, float]:
    """The amounts of --limit by resource.

    Raises:
        UsageError: a resource or an amount does not exist.
    """
    amounts = parse_assignments(list(texts), "--limit")
    return {resource: _amount(resource, text) for resource, text in amounts.items()}


def parse_front(front: str | None) -> tuple[str, ...]:
    """The objectives of --pareto beside latency.

    Raises:
        UsageError: they are not understood.
    """
    from nnstretch.scheduler.selection.resources import RESOURCES

    if front is None:
        return ()
    objectives = [part.strip() for part in front.split(",")]
    traded = [name for name in objectives if name != LATENCY]
    wrong = [name for name in traded if name not in (*RESOURCES, ACCURACY)]
    if wrong or LATENCY not in objectives or not traded or len(set(objectives)) < len(objectives):
        raise UsageError(
            f"--pareto {front!r} is not understood; write latency and some of {', '.join((*RESOURCES, ACCURACY))}"
        )
    return tuple(traded)


def _amount(resource: str, text: str) -> float:
    from nnstretch.scheduler.selection.resources import MEMORY, RESOURCES

    if resource not in (*RESOURCES, ACCURACY):
        raise UsageError(f"--limit {resource} is not known; resources are {', '.join((*RESOURCES, ACCURACY))}")
    if resource == MEMORY:
        return parse_bytes(text)
    if _NUMBER.fullmatch(text.strip()) is None:
        example = "0.5" if resource == ACCURACY else "0.001"
        raise UsageError(f"--limit {resource}={text} is not understood; write a number such as {resource}={example}")
    return float(text)


def split_outputs(outputs: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Where the plan goes, and where reports go, which their endings tell.

    Raises:
        UsageError: an ending is of neither.
    """
    from nnstretch.report.documents.writers import ENDINGS

    check_endings(outputs, "plans and reports are", (_PLAN_ENDING, *ENDINGS))
    plans = [path for path in outputs if path.suffix == _PLAN_ENDING]
    return plans, [path for path in outputs if path.suffix != _PLAN_ENDING]


def requested_space(
    graph: ir.Model, processors: Processors, request: TuningRequest, costs: Profiler, progress: Progress
) -> ChoiceSpace:
    """What there is to choose from, with measured costs, and with amounts where they are limited or traded."""
    from nnstretch.compiler.compile import measured_space
    from nnstretch.scheduler.selection.resources import with_resources

    space = measured_space(
        graph,
        processors,
        costs,
        progress,
        coordinate_descent=request.search == "default",
        keep_types=request.points is not None or ACCURACY in request.traded,
    )
    if request.resources:
        space = with_resources(space, request.resources, progress)
    return replace(space, problem=replace(space.problem, limits=request.limits, seed=request.seed))


def dtypes_answer(space: ChoiceSpace, found: HybridAnswer, dtype: str | None) -> dict[str, Any]:
    """The element type of each layer, for the JSON answer; of a hybrid the predicted latency in each type, too."""
    from nnstretch.scheduler.placement.sharing import type_milliseconds
    from nnstretch.scheduler.selection.hybrid import dtypes_of_units

    predicted = dict(type_milliseconds(space))
    if not predicted and found.restricted:
        predicted = {name: answer.cost * 1e3 for name, answer in (*found.restricted.items(), (HYBRID, found.best))}
    layers = {unit.name: one for unit, one in dtypes_of_units(space, found.best)}
    return {"dtypes": {"requested": dtype, "predicted_ms": predicted, "layers": layers}}


def check_accuracy(request: TuningRequest, dtype: str | None, target: str) -> None:
    """Refuses a limit or a front of accuracy without what it needs, and images without either.

    Raises:
        UsageError: something is missing, or too much.
    """
    if request.points is None and ACCURACY not in request.traded:
        if request.data is not None:
            raise UsageError(
                f"--data {request.data} is for top-1; add --limit {ACCURACY}=POINTS or --pareto {LATENCY},{ACCURACY}"
            )
        return
    asked = f"--pareto {ACCURACY}" if request.points is None else f"--limit {ACCURACY}"
    if request.points is not None and dtype != HYBRID:
        raise UsageError(f"{asked} chooses between int8 and float32; add --dtype {HYBRID}")
    if request.data is None:
        raise UsageError(f"{asked} measures top-1 on validation images; add --data SET")
    if target != "local":
        raise UsageError(f"{asked} runs plans on this machine; leave --target {target} out")


def accuracy_answer(found: AccurateAnswer, points: float, images: int) -> dict[str, Any]:
    """What a limit of accuracy found, for the JSON answer."""
    top1 = {"float32": found.reference, HYBRID: found.accuracy}
    return {"accuracy": {"points": points, "top1": top1, "images": images, "measured_plans": found.measured}}


def findings(space: ChoiceSpace, answer: Assignment, request: TuningRequest, progress: Progress) -> dict[str, Any]:
    """Amounts, explanation, comparison and Pareto front without accuracy of the request, for the JSON answer."""
    found: dict[str, Any] = {}
    if request.limits or answer.amounts:
        found["limits"] = request.limits
        found["amounts"] = dict(answer.amounts)
    if request.explain or request.report:
        found["explanation"] = _explanation(space, answer)
    if request.compare:
        found["comparison"] = _comparison(space, progress)
    if request.traded and ACCURACY not in request.traded:
        found["pareto"] = _front(space, request.traded)
    return found


def disturbances(watch: CoreWatch | None, costs: Profiler, processors: Processors) -> dict[str, Any]:
    """What may have made figures wrong, for the JSON answer.

    Args:
        watch: of the cores of this machine since before the measurements; None for another machine.
        costs: of the measurements.
        processors: that they were made on.
    """
    from nnstretch.compiler.costs import clocks_of

    if watch is None:
        return {"other_programs": None, "clocks": {}}
    others = watch.others()
    return {"other_programs": others.to_json() if others else None, "clocks": clocks_of(costs, processors)}


def search_answer(request: TuningRequest, searched: Mapping[str, Exploration]) -> dict[str, Any]:
    """How parameters were searched, as it goes into the JSON answer."""
    processors = {
        name: {"measured": len(found.measured), "candidates": found.candidates, "spread": found.spread}
        for name, found in searched.items()
    }
    return {"kind": request.search, "processors": processors}


def _explanation(space: ChoiceSpace, answer: Assignment) -> list[dict[str, Any]]:
    from nnstretch.scheduler.selection.explanation import explain

    return [
        {
            "name": unit.name,
            "op": unit.op,
            "adapts_ms": unit.adapts * 1e3,
            "greedy_loss_ms": unit.greedy_loss * 1e3,
            "candidates": [
                {
                    "processor": c.processor,
                    "routine": c.routine,
                    "parameters": c.parameters,
                    "layouts": c.layouts,
                    "cost_ms": c.seconds * 1e3,
                    "error": c.error,
                    "chosen": c.chosen,
                    "fused": c.fused,
                }
                for c in unit.candidates
            ],
            "failures": [asdict(failure) for failure in unit.failures],
        }
        for unit in explain(space, answer)
    ]


def _comparison(space: ChoiceSpace, progress: Progress) -> list[dict[str, Any]]:
    from nnstretch.scheduler.selection import SELECTORS, selector_named
    from nnstretch.scheduler.selection.explanation import compare

    rows: list[dict[str, Any]] = []
    for number, name in enumerate(SELECTORS):
        progress(number, len(SELECTORS), name)
        (row,) = compare(space.problem, [selector_named(name)])
        rows.append(
            {
                "selector": name,
                "predicted_ms": row.answer.cost * 1e3,
                "optimal": row.answer.optimal,
                "gap": row.answer.gap,
                "seconds": row.seconds,
                "states": row.answer.states,
                "curve": [[step, cost * 1e3] for step, cost in row.answer.curve],
            }
        )
    return rows


def _front(space: ChoiceSpace, traded: Sequence[str]) -> dict[str, Any]:
    from nnstretch.scheduler.selection.constraints.pareto import pareto

    front = pareto(space.problem, traded)
    points = [{"latency_ms": p.cost * 1e3, **{r: p.amounts[r] for r in traded}} for p in front.points]
    return {
        "objectives": [LATENCY, *traded],
        "complete": front.gap == 0,
        "gap": front.gap if math.isfinite(front.gap) else None,
        "points": points,
    }


def accuracy_front_answer(
    space: ChoiceSpace, found: HybridAnswer, images: ValidationImages, request: TuningRequest, progress: Progress
) -> dict[str, Any]:
    """The Pareto front with measured accuracies, for the JSON answer."""
    from nnstretch.cli.tuning.accuracy import measured_front
    from nnstretch.scheduler.selection.hybrid import dtypes_of_units

    resources = [name for name in request.traded if name != ACCURACY]
    front = measured_front(space, found, images, resources, request.measured_plans, progress)
    points = []
    for point, accuracy in zip(front.points, front.accuracies, strict=True):
        types = Counter(dtype for _, dtype in dtypes_of_units(space, point))
        amounts = {name: point.amounts[name] for name in resources}
        points.append({"latency_ms": point.cost * 1e3, **amounts, ACCURACY: accuracy, "layers": dict(types)})
    return {
        "pareto": {
            "objectives": [LATENCY, *resources, ACCURACY],
            "complete": front.gap == 0 and front.measured == front.candidates,
            "gap": None,
            "images": len(images.dataset.validation),
            "candidates": front.candidates,
            "measured_plans": front.measured,
            "points": points,
        }
    }
