"""Plans and packages: what runs where, by which routine, in how much memory."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from nnstretch.errors import FileError
from nnstretch.package.format import read_package
from nnstretch.report.charts.plan import steps_panel
from nnstretch.report.charts.timeline import timeline_panel
from nnstretch.report.documents.document import Cell, Document, Section, Table
from nnstretch.report.documents.facts import facts_of
from nnstretch.report.tables.runs import queue_names, repeated_text
from nnstretch.report.tables.text import operator_text, parameters_text
from nnstretch.scheduler.plan.schema import Plan
from nnstretch.scheduler.runtime.timeline import Timeline
from nnstretch.scheduler.simulation.timing import NoInterference, simulate

_PRODUCTS = "million more in products of run-time matrices"
_REPEATED = "million more of rows that two processors compute"

_PREDICTED = "predicted ms"
_TOGETHER = "predicted ms, transfers and contention left out"
_ALONE = "predicted ms, steps one after another"
_STEPS = "Predicted, one after another."
_RUN = (
    "A predicted run: steps take their predicted times, and sub-graphs begin as soon as their processor and what they read are "
    "ready. Transfers between processors and contention are left out, so a measured run takes longer."
)


def read_plan_file(path: Path) -> Document:
    """The document of a plan file.

    Raises:
        FileError: it cannot be read.
        PackageError: it is no plan.
    """
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(f"cannot read {path}: {error}") from error
    plan = Plan.from_json(text, str(path), "tune the model again")
    return Document(f"Plan {path.name}", _lead(plan), _figures(plan), _sections(plan), {"format": str(plan.version)})


def read_package_file(path: Path) -> Document:
    """The document of a package, with all its plans.

    Raises:
        FileError, PackageError: it cannot be read, or is damaged.
    """
    package = read_package(path)
    plans = {name: Plan.from_json(packed.plan, f"{path}: {name}") for name, packed in package.plans.items()}
    first = next(iter(plans.values()))
    sections = [
        section
        for name, plan in plans.items()
        for section in _sections(plan, f" of plan {name}" if len(plans) > 1 else "")
    ]
    figures: dict[str, Cell] = {
        **_figures(first),
        "MB of the file": path.stat().st_size / 1e6,
        "MB of weights": package.constants.nbytes / 1e6,
        **({"plans": len(plans)} if len(plans) > 1 else {}),
    }
    return Document(f"Package {path.name}", _lead(first), figures, sections, facts_of(package.metadata))


def _lead(plan: Plan) -> str:
    inputs = ", ".join(f"{tensor.name} {tensor.type}" for tensor in plan.inputs)
    return f"Reads {inputs}; runs on {', '.join(plan.processors)}."


def _figures(plan: Plan) -> dict[str, Cell]:
    predicted: dict[str, Cell] = {_PREDICTED: plan.predicted_ms}
    if _has_several_processors(plan):
        run = _predicted_run(plan)
        predicted = {_TOGETHER: None if run is None else run.total / 1e6, _ALONE: plan.predicted_ms}
    return {
        **predicted,
        "million MACs": plan.macs / 1e6,
        **({_PRODUCTS: plan.product_macs / 1e6} if plan.product_macs else {}),
        **({_REPEATED: plan.repeated_macs / 1e6} if plan.repeated_macs else {}),
        "steps": len(plan.steps),
        "sub-graphs": len(plan.subgraphs),
        "MB of tensors": plan.arena_bytes / 1e6,
    }


def _sums_text(plan: Plan) -> str:
    """What the sums over steps count."""
    text = "Sums over all steps."
    if not plan.repeated_macs:
        return text
    return f"{text} In bands of rows, {repeated_text(plan)} than the network has."


def _has_several_processors(plan: Plan) -> bool:
    return sum(bool(queue.processor) for queue in plan.queues) > 1


def _predicted_run(plan: Plan) -> Timeline | None:
    """A run in which processors compute at the same time and do not disturb each other; None if a step's time is unknown."""
    return None if plan.predicted_ms is None else simulate(plan, NoInterference())


def _sections(plan: Plan, of: str = "") -> list[Section]:
    queues = queue_names(plan)
    by_routine: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for step, queue in zip(plan.steps, queues, strict=True):
        entry = by_routine[queue, step.routine]
        for number, value in enumerate((1, step.cost_ms or 0.0, step.macs / 1e6)):
            entry[number] += value
    routines: list[Sequence[Cell]] = [
        (routine, queue, int(count), ms, macs)
        for (queue, routine), (count, ms, macs) in sorted(by_routine.items(), key=lambda item: -item[1][1])
    ]
    rows: list[Sequence[Cell]] = [
        (
            step.layer,
            operator_text(step.op),
            queue,
            step.routine,
            parameters_text(step.parameters),
            step.cost_ms,
            step.macs / 1e6,
        )
        for step, queue in zip(plan.steps, queues, strict=True)
    ]
    run = _predicted_run(plan) if _has_several_processors(plan) else None
    chart = None
    if run is not None:
        chart = timeline_panel(run)
    elif any(step.cost_ms for step in plan.steps):
        chart = steps_panel(plan, queues)
    titles = ["layer", "operator", "processor", "routine", "parameters", "ms", "million MACs"]
    return [
        Section(
            f"Routines{of}",
            _sums_text(plan),
            table=Table(["routine", "processor", "steps", "ms", "million MACs"], routines, 2),
        ),
        Section(
            f"Steps{of}",
            _STEPS if run is None else _RUN,
            chart,
            Table(titles, rows, 5),
            folded=True,
        ),
    ]
