"""Plans as files: what `nnstretch tune -o` writes, and what `--plan` makes a model runnable with, without measuring.

A file holds the plan's JSON and, under the key `selection`, the choices that the plan was made from. It holds no weights:
applying it lowers the model's graph with these choices. The result must be the saved plan, so that a plan for another model,
or for processors that differ from those of the tuning, is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import onnx_ir as ir

from nnstretch.api.options import CompileOptions
from nnstretch.compiler.compile import optimized_for
from nnstretch.compiler.processors import Processors, build_processors
from nnstretch.devices.base.routine import PLAIN, Layout
from nnstretch.devices.base.spec import parse_processors
from nnstretch.devices.cpu.processor import cpu_model
from nnstretch.devices.engine.build.instruction_sets import local_isa
from nnstretch.errors import FileError, PackageError, UsageError
from nnstretch.scheduler.costmodel.costs import Estimates
from nnstretch.scheduler.lowering.candidates import fused_choices, is_native
from nnstretch.scheduler.lowering.choices import Choice, Fused, FusionGroup, find_fusion_groups
from nnstretch.scheduler.lowering.crossing import Crossing, Crossings, crossings_of
from nnstretch.scheduler.lowering.units import Unit, UnitGraph, unit_graph
from nnstretch.scheduler.placement.bands import BandedSection, banded_graph
from nnstretch.scheduler.placement.splitting import Division, split_graph
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.schema import Plan, PlanTensor, QueuePool, json_reader, queue_pool
from nnstretch.scheduler.plan.tuned_on import to_metadata, warn_of_other_cpu
from nnstretch.scheduler.planner import ChoiceSpace, plan_of_choices
from nnstretch.scheduler.selection.problem import Assignment
from nnstretch.support.json_text import DAMAGED

_Groups = Mapping[frozenset[str], tuple[Sequence[str], FusionGroup]]
"""Fusion groups and the names of their units, in their order, by these names."""


@dataclass(frozen=True)
class SavedChoice:
    """The choice of a unit.

    Attributes:
        unit: its name.
        queue: number of its queue.
        routine: descriptor; "" for the fallback.
        parameters: of the routine.
        group: names of the units that the routine computes as one, in their order; empty for a unit by itself. The last
            one has the parameters.
    """

    unit: str
    queue: int
    routine: str
    parameters: Mapping[str, int]
    group: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.queue < 0:
            raise ValueError(f"queue {self.queue}")


@dataclass(frozen=True)
class SavedCrossing:
    """The way of a tensor to its readers in one layout and one memory domain.

    Attributes:
        tensor: its name.
        read: layout in which it is read.
        domain: of the readers.
        way: the crossing.
    """

    tensor: str
    read: Layout
    domain: int
    way: Crossing


@dataclass(frozen=True)
class SavedSelection:
    """The choices that a plan was made from, in the order of its units.

    Attributes:
        processors: names of those that the tuning was for; the plan may use some of them only.
        engines: external engines that could be chosen.
        tolerance: largest error of a routine.
        splits: channels of each share of a layer that is split between processors, by the layer's name.
        choices: of all units.
        isa: instruction set that the routines are for; empty in files of earlier versions.
        fingerprints: of the processors, where the plan was tuned; empty in files of earlier versions.
        dtype: `CompileOptions.dtype` of the tuning; empty if none was given.
        bands: sections that processors compute in bands of rows; none in files of earlier versions.
        cpu: name of the CPU that the plan was tuned on; empty if that was another machine's, and in files of earlier versions.
        crossings: of tensors that had several ways to their readers; None in files of earlier versions, where there was one.
    """

    processors: tuple[str, ...]
    engines: tuple[str, ...]
    tolerance: float
    splits: Mapping[str, tuple[int, ...]]
    choices: tuple[SavedChoice, ...]
    isa: str = ""
    fingerprints: tuple[str, ...] = ()
    dtype: str = ""
    bands: tuple[BandedSection, ...] = ()
    cpu: str = ""
    crossings: tuple[SavedCrossing, ...] | None = None


def plan_file(plan: Plan, space: ChoiceSpace, assignment: Assignment, processors: Processors) -> str:
    """The JSON text of a plan with the choices that it was made from."""
    chosen = space.chosen(assignment)
    groups = {
        choice.group.units: [u.name for u, c in zip(space.graph.units, chosen, strict=True) if _is_in(c, choice.group)]
        for choice in chosen
        if choice.group is not None
    }
    described = processors.host.describe()
    selection = SavedSelection(
        tuple(p.name for p in processors.named),
        tuple(processors.options.engines),
        processors.options.largest_error,
        space.splits,
        tuple(_saved(unit, choice, groups) for unit, choice in zip(space.graph.units, chosen, strict=True)),
        "" if described is None else described.isa,
        tuple(p.fingerprint for p in processors.named),
        processors.options.dtype or "",
        space.bands,
        cpu_model() if processors.site is None else "",
        tuple(
            SavedCrossing(*key, way) for key, way in crossings_of(space.graph, chosen, space.pool, space.costs).items()
        ),
    )
    return json.dumps({**json.loads(plan.to_json()), "selection": asdict(selection)}, indent=1)


@dataclass(frozen=True)
class PlanMachine:
    """The machine that a saved plan is applied on.

    Attributes:
        name: for messages.
        isa: its instruction set.
        processors: opens those of the plan.
        cores: those that may be used; None: as this process may.
    """

    name: str
    isa: str
    processors: Callable[[CompileOptions], Processors]
    cores: tuple[int, ...] | None = None


def compile_with_plan(graph: ir.Model, options: CompileOptions, machine: PlanMachine | None = None) -> Compiled:
    """The saved plan `options.plan` with constants from a graph.

    Args:
        graph: unoptimised.
        options: name the file, and may name its processors.
        machine: where the plan runs; this machine if None.

    Raises:
        FileError, PackageError: the file cannot be read, or is damaged.
        UsageError: it is for another instruction set, other processors, another tolerance or another model.
        DeviceError: a processor of the plan does not exist there.
    """
    path = Path(options.plan or "")
    is_here = machine is None
    machine = machine or _this_machine()
    plan, selection = check_plan(options, machine)
    if is_here:
        warn_of_plan(path, selection)
    own = replace(options, plan=None, processors=",".join(selection.processors), engines=selection.engines)
    usable = machine.processors(replace(own, tolerance=selection.tolerance, dtype=selection.dtype or None))
    units, groups = _units(path, optimized_for(graph, usable), usable, selection)
    pool = _pool(usable, plan)
    try:
        choices = _choices(path, units, groups, pool, selection)
        made = plan_of_choices(units, choices, pool, Estimates(), usable.host.blocked.block, _crossings(selection))
    except IndexError as error:
        raise PackageError(f"{path} is damaged: its choices name queues that it does not have") from error
    except (KeyError, ValueError) as error:
        raise UsageError(
            f"{path} has parameters that no routine takes on {machine.name}; run `nnstretch tune -o` for this one"
        ) from error
    if difference := _difference(plan, Plan.from_json(made.plan.to_json())):
        raise UsageError(f"{path} is for another model: {difference}; run `nnstretch tune -o` for this one")
    return replace(made, plan=plan, metadata=to_metadata(selection.cpu))


def check_plan(options: CompileOptions, machine: PlanMachine | None = None) -> tuple[Plan, SavedSelection]:
    """Reads the saved plan `options.plan` and looks whether it is for a machine, before a model is made.

    Args:
        options: name the file, and may name its processors.
        machine: where the plan runs; this machine if None.

    Raises:
        FileError, PackageError: the file cannot be read, or is damaged.
        UsageError: it is for another instruction set, other processors or another tolerance.
    """
    path = Path(options.plan or "")
    plan, selection = read_plan(path)
    machine = machine or _this_machine()
    if selection.isa not in ("", machine.isa):
        raise UsageError(
            f"{path} is for {selection.isa}, {machine.name} has {machine.isa}; give the --target that it was tuned for, or "
            "tune for this one"
        )
    if options.tolerance not in (None, selection.tolerance):
        raise UsageError(
            f"{path} was tuned with a tolerance of {selection.tolerance:g}, not {options.tolerance:g}; leave it out, or tune "
            "with this one"
        )
    _check_processors(path, selection, options, machine.cores)
    names = ",".join(selection.processors)
    try:
        parse_processors(names, machine.cores)
    except UsageError as error:
        raise UsageError(
            f"{path} is for processors {names}, which {machine.name} lacks: {error}; run `nnstretch tune -o` for this one"
        ) from error
    return plan, selection


def warn_of_plan(path: Path, selection: SavedSelection) -> None:
    """Warns if a saved plan was tuned on another CPU than this machine's."""
    warn_of_other_cpu(path, selection.cpu, "nnstretch tune -o")


def _this_machine() -> PlanMachine:
    return PlanMachine("this machine", local_isa().name, build_processors)


def _is_in(choice: Choice, group: FusionGroup) -> bool:
    fused = choice.outputs[0]
    return choice.group is group or (isinstance(fused, Fused) and fused.units == group.units)


def _saved(unit: Unit, choice: Choice, groups: Mapping[tuple[int, ...], Sequence[str]]) -> SavedChoice:
    fused = choice.outputs[0]
    numbers = choice.group.units if choice.group else fused.units if isinstance(fused, Fused) else ()
    routine = "" if choice.routine is None else str(choice.routine.descriptor)
    parameters = dict(sorted(choice.parameters.items()))  # the profile store and a search have orders of their own
    return SavedChoice(unit.name, choice.queue, routine, parameters, tuple(groups.get(numbers, ())))


def named_processors(options: CompileOptions) -> str:
    """The processors that options name, or those of their saved plan.

    Raises:
        FileError, PackageError: the plan cannot be read, is none, or is damaged.
    """
    if options.plan is None:
        return options.processors
    return ",".join(read_plan(Path(options.plan))[1].processors)


def read_plan(path: Path) -> tuple[Plan, SavedSelection]:
    """A plan that `nnstretch tune -o` wrote, with the choices that it was made from.

    Raises:
        FileError, PackageError: the file cannot be read, is no plan, or is damaged.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise FileError(f"there is no plan {path}; `nnstretch tune MODEL -o {path}` writes one") from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise PackageError(f"{path} is not a plan; give a file that `nnstretch tune -o` wrote") from error
    plan = Plan.from_json(text, str(path), "write it again with `nnstretch tune -o`")
    raw = json.loads(text).get("selection")
    if raw is None:
        raise PackageError(f"{path} has no selection of routines; write it again with `nnstretch tune -o`")
    try:
        return plan, json_reader(SavedSelection)(raw)
    except DAMAGED as error:
        raise PackageError(f"{path} is damaged: {error!r}; write it again with `nnstretch tune -o`") from error


def _check_processors(
    path: Path, selection: SavedSelection, options: CompileOptions, usable: tuple[int, ...] | None
) -> None:
    """Refuses other processors than those of the tuning; the default stands for the plan's."""
    if options.processors == CompileOptions.processors:
        return
    given = [str(spec) for spec in parse_processors(options.processors, usable)]
    saved = [name.partition("*")[0] for name in selection.processors]
    if given not in ([*selection.processors], saved):
        raise UsageError(
            f"{path} is for processors {','.join(selection.processors)}, not {','.join(given)}; leave them out, or run "
            f"`nnstretch tune -p {options.processors} -o` for these"
        )


def _pool(processors: Processors, plan: Plan) -> QueuePool:
    """The plan's queues with the processors behind them, in the plan's order."""
    by_name = {p.name: p for p in processors.named}
    if unknown := [name for name in plan.processors if name not in by_name]:
        raise PackageError(f"the plan has a queue for {unknown[0]}, which its selection does not name; run tune again")
    return queue_pool([by_name[name] for name in plan.processors], processors.host)


def _units(path: Path, model: ir.Model, processors: Processors, selection: SavedSelection) -> tuple[UnitGraph, _Groups]:
    """The graph's units, split and in the order of the plan, and its fusion groups."""
    pool = queue_pool(processors.named, processors.host)
    whole = banded_graph(unit_graph(model, is_native(pool)), selection.bands)
    if whole is None or any(not 0 <= p < len(pool.queue_of) for one in selection.bands for p in one.processors):
        raise UsageError(
            f"{path} is for another model: this one cannot be computed in the plan's bands of rows; run `nnstretch tune -o` "
            "for this one"
        )
    named = (([whole.units[u].name for u in group.units], group) for group in find_fusion_groups(whole))
    groups = {frozenset(names): (names, group) for names, group in named}
    divisions = {
        number: Division((), selection.splits[unit.name])
        for number, unit in enumerate(whole.units)
        if unit.name in selection.splits
    }
    split = split_graph(whole, divisions).graph
    by_name = {unit.name: unit for unit in split.units}
    names = [choice.unit for choice in selection.choices]
    if len(names) != len(by_name) or set(names) != set(by_name):
        odd = sorted(set(names) ^ set(by_name))
        where = "the plan" if odd and odd[0] in names else "the model"
        what = f"only {where} has layer {odd[0]}" if odd else "it has other layers"
        raise UsageError(f"{path} is for another model: {what}; run `nnstretch tune -o` for this one")
    return replace(split, units=tuple(by_name[name] for name in names)), groups


def _choices(path: Path, graph: UnitGraph, groups: _Groups, pool: QueuePool, selection: SavedSelection) -> list[Choice]:
    """The choice of every unit, with the layouts that its routine has."""
    found: dict[str, Choice] = {}
    for unit, saved in zip(graph.units, selection.choices, strict=True):
        if not saved.group:
            found[unit.name] = _single(path, unit, saved, pool)
        elif saved.unit == saved.group[-1]:
            names, group = groups.get(frozenset(saved.group), ((), None))
            if group is None:
                raise UsageError(
                    f"{path} is for another model: it fuses {' and '.join(saved.group)}, which this one cannot; run "
                    "`nnstretch tune -o` for this one"
                )
            tail = _routine_choice(path, replace(unit, layer=group.layer), saved, pool)
            found.update(zip(names, fused_choices(group, tail, group.units[-1]), strict=True))
    return [found[unit.name] for unit in graph.units]


def _single(path: Path, unit: Unit, saved: SavedChoice, pool: QueuePool) -> Choice:
    if unit.is_fallback and not saved.routine:
        return Choice(saved.queue, None, {}, (PLAIN,) * len(unit.inputs), (PLAIN,) * len(unit.outputs), 0.0)
    return _routine_choice(path, unit, saved, pool)


def _routine_choice(path: Path, unit: Unit, saved: SavedChoice, pool: QueuePool) -> Choice:
    """The choice of a routine for the unit's layer."""
    processor = pool.processors[saved.queue]
    for routine in processor.routines:
        if str(routine.descriptor) == saved.routine and routine.supports(unit.layer):
            inputs, outputs = routine.layouts(unit.layer, saved.parameters)
            return Choice(saved.queue, routine, saved.parameters, inputs, outputs, 0.0)
    raise UsageError(
        f"{path} computes layer {saved.unit} by {saved.routine or 'the fallback'}, which {processor.name} does not have "
        "for it; run `nnstretch tune -o` here"
    )


def _crossings(selection: SavedSelection) -> Crossings | None:
    """The crossings of a saved selection, if it has any."""
    if selection.crossings is None:
        return None
    return {(one.tensor, one.read, one.domain): one.way for one in selection.crossings}


def _difference(saved: Plan, made: Plan) -> str:
    """What differs between two plans but for costs; empty if nothing does."""
    for what, before, now in (("inputs", saved.inputs, made.inputs), ("outputs", saved.outputs, made.outputs)):
        if before != now:
            return f"its {what} are {_tensors(before)}, the model's {_tensors(now)}"
    for mine, other in zip(saved.steps, made.steps, strict=False):
        if replace(mine, cost_ms=None) != replace(other, cost_ms=None):
            return f"its step for layer {mine.layer} differs from the model's for {other.layer}"
    without = [json.loads(replace(plan, steps=()).to_json()) for plan in (saved, made)]
    return "" if without[0] == without[1] and len(saved.steps) == len(made.steps) else "its memory or order differs"


def _tensors(tensors: Sequence[PlanTensor]) -> str:
    return ", ".join(f"{tensor.name} {list(tensor.type.shape)}" for tensor in tensors)
