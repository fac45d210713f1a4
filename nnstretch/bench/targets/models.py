"""Models for a target: compiled for its instruction set and processors, with inputs and the outputs that are expected."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx_ir as ir

from nnstretch.api.options import CompileOptions
from nnstretch.bench.comparison.subject import random_feeds, reference_outputs
from nnstretch.compiler.compile import plan_model
from nnstretch.compiler.processors import build_processors, foreign_processors
from nnstretch.compiler.targets.opencl import device_names, names_opencl, opencl_processor
from nnstretch.compiler.targets.stored import plan_from_file, stored_plan
from nnstretch.devices.base.spec import parse_processors
from nnstretch.devices.cpu.manifest import families
from nnstretch.devices.engine.build.instruction_sets import ISAS, Isa, local_isa
from nnstretch.devices.targets.device import Device
from nnstretch.errors import FeedError, ModelError, NNStretchError, PackageError, UsageError, first_line
from nnstretch.package import read_package
from nnstretch.package.standalone import check_standalone, write_model_file
from nnstretch.package.standalone_devices import DeviceName
from nnstretch.package.standalone_head import read_ends, read_head
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.scheduler.plan.packaging import unpackaged
from nnstretch.scheduler.plan.schema import Plan
from nnstretch.support.progress import Progress, silent

TUNED, ESTIMATED = "tuned", "estimated"


@dataclass(frozen=True)
class TargetModel:
    """A model file for a target.

    Attributes:
        name: as the user wrote the model.
        file: the model file.
        feeds: an array for each input; empty if they are not known, so that the runner draws them.
        reference: ONNX Runtime's outputs for these inputs, by name; None if there is nothing to compare with.
        macs: multiply-accumulates of one run; None if they are not known.
        note: what the user should know of how it was compiled; empty if there is nothing.
        routines: how they were chosen: `TUNED` by measurements, `ESTIMATED`; None if that is not known.
        plan: what was compiled; None for a model file.
    """

    name: str
    file: Path
    feeds: Mapping[str, np.ndarray] = field(default_factory=dict)
    reference: Mapping[str, np.ndarray] | None = None
    macs: int | None = None
    note: str = ""
    routines: str | None = None
    plan: Plan | None = None

    def with_inputs(self, feeds: Mapping[str, np.ndarray], graph: ir.Model | None) -> TargetModel:
        """The model with inputs, and with ONNX Runtime's outputs for them if its graph is known.

        Raises:
            FeedError: the inputs are not the model's.
            ModelError: ONNX Runtime cannot run the graph.
        """
        if graph is None:
            return replace(self, feeds=feeds)
        names = [str(value.name) for value in graph.graph.inputs]
        if sorted(names) != sorted(feeds):
            raise FeedError(f"the inputs are {', '.join(feeds) or 'none'}; {self.name} has {', '.join(names)}")
        arrays = read_ends(self.file).arrays(feeds)
        ordered = {name: arrays[name] for name in names}
        return replace(self, feeds=ordered, reference=reference_outputs(graph, ordered))


def compile_for_target(
    graph: ir.Model, name: str, device: Device, options: CompileOptions, file: Path, progress: Progress = silent
) -> TargetModel:
    """Compiles a graph for the processors of a target, as `planned_for_target` says, and writes it to a model file.

    Raises:
        ModelError: a layer has no native routine.
        NNStretchError: the model cannot be compiled.
    """
    planned = planned_for_target(graph, name, device, options, progress)
    plan = planned.compiled.plan
    write_for_target(planned.compiled, name, device.isa, file, device_names(device.probe))
    return TargetModel(name, file, macs=plan.macs, note=planned.note, routines=planned.routines, plan=plan)


class Planned(NamedTuple):
    """A plan for a target, how its routines were chosen, and what the user should know of that."""

    compiled: Compiled
    routines: str
    note: str


def planned_for_target(
    graph: ir.Model, name: str, device: Device, options: CompileOptions, progress: Progress = silent
) -> Planned:
    """Plans a graph for the processors of a target.

    Routines are those of the plan that the options name. Without one, they are chosen by measurements on the target, if the
    profile store has them; by measurements here, if this machine has the instruction set and the cores; else by estimates.

    Args:
        graph: an unoptimised graph with static shapes.
        name: as the user wrote the model.
        device: the target.
        options: with the target's processors (`processors_of_target`).
        progress: called while routines are measured.

    Raises:
        NNStretchError: the model cannot be planned.
    """
    if options.plan is not None:
        found = plan_from_file(graph, device, options)
        here = (
            "" if found.is_of_this_kind else f"{options.plan} was tuned on another kind of device; see `nnstretch tune`"
        )
        return Planned(found.compiled, TUNED, here)
    if options.tune and (stored := stored_plan(graph.clone(), device, options)) is not None:
        return Planned(stored, TUNED, f"{name}: routines are those that are fastest by measurements on {device.name}")
    own = replace(options, target="local")
    is_known_here = device.is_here or not names_opencl(options.processors)
    if is_known_here and device.isa == local_isa() and _are_cores_of_this_machine(options.processors):
        compiled = plan_model(graph, build_processors(own), tune=options.tune, progress=progress)
        return Planned(compiled, TUNED if options.tune else ESTIMATED, "")
    processors = foreign_processors(
        device.isa, own, device.probe.features, lambda spec: opencl_processor(device, spec, own)
    )
    compiled = plan_model(graph, processors, tune=False, progress=progress)
    advice = (
        f"{name}: routines are chosen by estimates; `nnstretch tune {name} --target {device.name}` measures them there"
    )
    return Planned(compiled, ESTIMATED, advice if options.tune else "")


def model_file_for_target(path: Path, device: Device, feeds: Mapping[str, np.ndarray]) -> TargetModel:
    """A model file of the user for a target.

    Raises:
        PackageError: it is no model file, or for another instruction set.
        FileError: it cannot be read.
    """
    isa = read_head(path).isa
    if isa != device.isa.name:
        raise PackageError(
            f"{path} is for {isa or 'no instruction set'}, {device.name} has {device.isa.name}; compile the model with "
            f"--standalone --target {device.isa.name}-linux-musl, or give the model itself"
        )
    return TargetModel(str(path), path, feeds)


def package_for_target(path: Path, device: Device, file: Callable[[], Path]) -> list[TargetModel]:
    """The plans of a package as model files; those that the target cannot run are left out and noted.

    Args:
        path: the package.
        device: the target.
        file: gives the next model file to write.

    Raises:
        FileError, PackageError: the package cannot be read, is damaged, or is for another instruction set.
        ModelError: no plan can run there: a layer has no native routine, or is for another kind of processor.
    """
    found: list[TargetModel] = []
    refused: list[ModelError] = []
    plans = unpackaged(read_package(path))
    for plan, compiled in plans.items():
        name = f"{path}: {plan}" if len(plans) > 1 else str(path)
        _check_instruction_set(compiled.plan, path, device)
        made = file()
        try:
            write_for_target(compiled, name, device.isa, made)
        except ModelError as error:
            refused.append(error)
            continue
        found.append(TargetModel(name, made, macs=compiled.plan.macs, plan=compiled.plan))
    if not found:
        raise refused[0]
    left_out = "; ".join(f"left out: {first_line(error)}" for error in refused)
    return [replace(found[0], note=left_out), *found[1:]]


def _check_instruction_set(plan: Plan, path: Path, device: Device) -> None:
    """Refuses a plan whose kernels the engine of a target does not have. Raises PackageError."""
    isa = device.isa
    here = {kernel.name for family in families().values() for kernel in family.on(isa)}
    kernels = {step.kernel for step in plan.steps if step.kind == "kernel"}
    if plan.block == isa.block and kernels <= here:
        return
    names = " or ".join(one.name for one in ISAS if one.block == plan.block and one.name != isa.name) or "another CPU"
    raise PackageError(
        f"{path} is for {names} (vectors of {plan.block} floats), {device.name} has {isa.name} (vectors of {isa.block}); "
        "give the model that it was made from"
    )


def write_for_target(
    compiled: Compiled, name: str, isa: Isa, file: Path, devices: Sequence[DeviceName] | None = None
) -> None:
    """Writes a model file; `devices` are the OpenCL devices of the target, as for `write_model_file`.

    Raises:
        ModelError: a layer has no native routine, or is for another kind of processor.
        FileError: the file cannot be written.
    """
    check_for_target(compiled, name)
    write_model_file(compiled, Path(name).stem or name, isa, file, devices)


def check_for_target(compiled: Compiled, name: str) -> None:
    """Refuses a plan that targets cannot run.

    Raises:
        ModelError: a layer has no native routine, or is for another kind of processor.
    """
    if layers := compiled.plan.fallback_layers:
        raise ModelError(
            f"{name}: a target runs native kernels only, and ONNX Runtime computes {', '.join(layers)}; "
            "change these layers, or measure here without --target"
        )
    try:
        check_standalone(compiled.plan)
    except UsageError as error:
        raise ModelError(f"{name}: {first_line(error)}") from error


def with_drawn_inputs(model: TargetModel, graph: ir.Model, seed: int) -> TargetModel:
    """A model with random inputs and ONNX Runtime's outputs for them; without, if it cannot run the graph."""
    try:
        return model.with_inputs(random_feeds(graph, seed), graph)
    except ModelError as error:
        return replace(model, note="; ".join(filter(None, (model.note, f"no reference: {first_line(error)}"))))


def _are_cores_of_this_machine(processors: str) -> bool:
    try:
        parse_processors(processors)
    except NNStretchError:
        return False
    return True
