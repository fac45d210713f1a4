"""`nnstretch compile`: writes a package, or a folder with a standalone model."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from nnstretch.api.options import CompileOptions
from nnstretch.cli.console import Reporter, reporting
from nnstretch.cli.options import (
    DesignFile,
    ImageSizeOption,
    Json,
    ModelToCompile,
    Weights,
    check_distinct,
    check_format,
    check_writable,
    file_path,
    option,
    results_directory,
    with_options,
)
from nnstretch.cli.running.rebalancing import rebalance_json
from nnstretch.errors import UsageError
from nnstretch.report.tables.runs import fallback_text, placement_text
from nnstretch.report.tables.text import count_text, plain_table, size_text
from nnstretch.support.words import counted

if TYPE_CHECKING:
    from nnstretch.cli.models.sources import Source
    from nnstretch.devices.engine.build.instruction_sets import BuildTarget
    from nnstretch.package.standalone_devices import DeviceName
    from nnstretch.scheduler.plan.compiled import Compiled
    from nnstretch.scheduler.plan.schema import Plan
    from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession


Product = Annotated[
    str | None,
    option("--output -o PATH", "The package (.nns), or the folder of a standalone model.", shown="the model's name"),
]
Standalone = Annotated[bool, option("--standalone", "Make a folder with an executable, a C library and its header.")]
WithRunner = Annotated[bool, option("--runner", "Add nns-bench, which times model files, to a standalone model.")]
Target = Annotated[
    str | None,
    option(
        "--target NAME",
        "Target of a standalone model: local, aarch64-linux-gnu, aarch64-linux-musl (static), x86-64-v3, …; or a machine, as "
        "adb, ssh:HOST or qemu:aarch64, whose cores and OpenCL devices --processors names.",
        shown="local",
    ),
]


@with_options(CompileOptions)
def compile_command(
    model: ModelToCompile,
    output: Product = None,
    standalone: Standalone = False,
    target: Target = None,
    runner: WithRunner = False,
    *,
    options: CompileOptions,
    weights: Weights = None,
    design: DesignFile = None,
    image_size: ImageSizeOption = None,
    json: Json = False,
) -> None:
    """Plan a model for processors and write it as a package that `run` opens without planning.

    With --plans, the package holds several plans; `run` switches between them when a processor is slow or fails. With
    --standalone, write a folder with an executable and a C library that need neither Python nor a framework.

    Example: nnstretch compile resnet50.onnx --processors cpu:0-3 -o resnet50.nns
    """
    with reporting(as_json=json) as report:
        from nnstretch.cli.models.sources import Source

        if target is not None and not standalone:
            raise UsageError("--target needs a standalone model; add --standalone, or leave it out")
        if runner and not standalone:
            raise UsageError("--runner needs a standalone model; add --standalone, or leave it out")
        if options.engines and standalone:
            raise UsageError("a standalone model runs native kernels only; leave --engines or --standalone out")
        if options.plans and standalone:
            raise UsageError("a standalone model has one plan; leave --plans or --standalone out")
        if standalone and (options.rebalance or options.keep_model):
            name = "--rebalance" if options.rebalance else "--keep-model"
            raise UsageError(f"{name} is for packages; leave it or --standalone out")
        source = Source(model, options, weights, design, image_size)
        if source.is_package:
            raise UsageError(f"{model} is a package already; give the model that it was made from")
        name = Path(model.partition(":")[0]).stem
        if standalone:
            _standalone(report, source, name, None if output is None else Path(output), target, runner=runner)
        else:
            package = file_path(output or f"{name}.nns")
            check_format(package, "packages are", ".nns")
            check_distinct(package, model, weights, design)
            _package(report, source, check_writable(package))


def _package(report: Reporter, source: Source, path: Path) -> None:
    """Writes a package with one plan or several, and shows its contents."""
    from nnstretch.scheduler.runtime.adaptive.session import AdaptiveSession

    with report.progress("Compiling") as advance:
        session = source.open(advance)
    report.note(source.note)
    with session:
        session.save(path, source.package_metadata(session.plan.macs))
    plan, size = session.plan, path.stat().st_size
    if isinstance(session, AdaptiveSession):
        report.show(f"{path}: {counted(len(session.plans), 'plan')}, {count_text(plan.macs)} MACs, {size_text(size)}")
        report.finish({"file": str(path), "bytes": size, "macs": plan.macs, "plans": _plans(report, session)})
        return
    report.show(f"{path}: {source.inputs_text}, {_summary(plan)}, for {','.join(plan.processors)}, {size_text(size)}")
    report.note(fallback_text(plan.fallback_layers))
    if session.compiled.placement is not None:
        report.note(placement_text(session.compiled.placement, plan))
    report.finish({"file": str(path), "bytes": size, **_facts(plan), **rebalance_json(report, session)})


def _plans(report: Reporter, session: AdaptiveSession) -> dict[str, Any]:
    """Shows the latency of every plan and how long it keeps its processors busy, and returns them as JSON."""
    table = plain_table("plan", ">p50 ms", ">busy ms")
    for facts in session.facts:
        table.add_row(facts.name, f"{facts.seconds * 1e3:.3f}", f"{sum(facts.busy.values()) * 1e3:.3f}")
    report.show(table)
    return {
        facts.name: {
            "p50_ms": facts.seconds * 1e3,
            "busy_ms": {name: seconds * 1e3 for name, seconds in facts.busy.items()},
        }
        for facts in session.facts
    }


def _standalone(
    report: Reporter, source: Source, name: str, output: Path | None, target_name: str | None, *, runner: bool
) -> None:
    from nnstretch.devices.engine.build.instruction_sets import parse_target
    from nnstretch.devices.targets.schemes import is_machine
    from nnstretch.package.standalone import standalone_files, write_standalone
    from nnstretch.training.data.preprocessing import write_preprocessing

    name = re.sub(r"[^\w.+-]", "_", name)
    standalone_files(name, Path())  # refuses the name before the long work
    folder = output or Path(name)
    with results_directory(folder):
        if target_name is not None and is_machine(target_name):
            compiled, target, devices = _compiled_for_machine(report, source, target_name)
        else:
            target, devices = parse_target(target_name or "local"), None
            compiled = _compiled(report, source, target)
        report.note(source.note)
        with report.progress("Building") as advance:
            advance(0, 0, f"the engine for {target}")
            files = write_standalone(compiled, name, target, folder, runner=runner, devices=devices)
        if source.preprocessing is not None:
            files = {**files, "preprocessing": write_preprocessing(files["model"], source.preprocessing)}
    sizes = {what: path.stat().st_size for what, path in files.items()}
    report.show(
        f"{folder}: {_summary(compiled.plan)}, for {target}; {files['model'].name} {size_text(sizes['model'])}, "
        f"{files['executable'].name} {size_text(sizes['executable'])}"
    )
    report.finish(
        {
            "folder": str(folder),
            "target": str(target),
            "files": {what: {"file": str(path), "bytes": sizes[what]} for what, path in files.items()},
            **_facts(compiled.plan),
        }
    )


def _compiled(report: Reporter, source: Source, target: BuildTarget) -> Compiled:
    """The saved plan, or one for the target's CPU, with measured routines if this machine has the same instruction set."""
    from nnstretch.compiler.compile import plan_model
    from nnstretch.compiler.processors import ALL_CORES, build_processors, foreign_processors
    from nnstretch.compiler.saved_plan import PlanMachine, check_plan, compile_with_plan
    from nnstretch.devices.engine.build.instruction_sets import local_isa

    options, tune = source.options, source.options.tune
    if options.plan is not None:
        other = PlanMachine(str(target), target.isa.name, lambda own: foreign_processors(target.isa, own), ALL_CORES)
        machine = None if target.isa == local_isa() else other
        check_plan(options, machine)  # before a graph is made, which may take long
        return compile_with_plan(source.load(), options, machine)
    if target.isa == local_isa():
        usable = build_processors(options)
    else:
        usable = foreign_processors(target.isa, options)
        if tune:
            report.note(f"routines are chosen by estimates: those for {target.isa.name} cannot be measured here")
        tune = False
    with report.progress("Compiling") as advance:
        return plan_model(source.load(), usable, tune=tune, progress=advance)


def _compiled_for_machine(
    report: Reporter, source: Source, name: str
) -> tuple[Compiled, BuildTarget, Sequence[DeviceName]]:
    """The plan for the processors of another machine, what to build for it, and its OpenCL devices."""
    from nnstretch.bench.targets.models import planned_for_target
    from nnstretch.compiler.saved_plan import named_processors
    from nnstretch.compiler.targets.opencl import device_names, names_opencl
    from nnstretch.compiler.targets.processors import processors_of_target
    from nnstretch.devices.external.litert import NAMES
    from nnstretch.devices.targets.litert import LiteRtUse
    from nnstretch.devices.targets.schemes import open_device

    options = source.options
    named = named_processors(options)
    litert = LiteRtUse(None) if any(one in named for one in NAMES) else None
    with (
        report.progress("Compiling") as advance,
        open_device(name, opencl=names_opencl(named), litert=litert) as device,
    ):
        advance(0, 0, f"for {name}")
        if options.plan is None:
            text = processors_of_target(device.probe, options.processors, options.threads, name)
            options = replace(options, processors=text, threads=None)
        planned = planned_for_target(source.load(), source.model, device, options, advance)
        found = planned.compiled, device.build_target, device_names(device.probe)
    report.note(planned.note)
    return found


def _summary(plan: Plan) -> str:
    subgraphs = len(plan.subgraphs)
    return f"{counted(len(plan.steps), 'step')} in {counted(subgraphs, 'sub-graph')}, {count_text(plan.macs)} MACs"


def _facts(plan: Plan) -> dict[str, Any]:
    return {
        "macs": plan.macs,
        "steps": len(plan.steps),
        "subgraphs": len(plan.subgraphs),
        "predicted_ms": plan.predicted_ms,
        "fallback_layers": list(plan.fallback_layers),
    }
