"""`nnstretch compile`: a model becomes a package, or a folder with all that runs it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnstretch.cli.console import Reporter, reporting
from nnstretch.cli.options import (
    Batch,
    DesignFile,
    Engines,
    Json,
    Model,
    NoTune,
    Plans,
    Processors,
    Shape,
    Threads,
    Weights,
    check_writable,
    make_directory,
    parse_engines,
    parse_plans,
)
from nnstretch.errors import UsageError
from nnstretch.report.tables.placement import placement_text
from nnstretch.report.tables.text import count_text, plain_table

if TYPE_CHECKING:
    from nnstretch.cli.sources import Source
    from nnstretch.devices.engine.build.instruction_sets import BuildTarget
    from nnstretch.scheduler.plan.compiled import Compiled
    from nnstretch.scheduler.plan.schema import Plan


Product = Annotated[
    Path | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="The package (.nns), or the folder of a standalone model.",
        show_default="the model's name",
    ),
]
Standalone = Annotated[
    bool, typer.Option("--standalone", help="Make a folder with an executable, a C library and its header.")
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        metavar="NAME",
        help="Where a standalone model runs: local, aarch64-linux-gnu, aarch64-linux-musl (Android too), x86-64-v3, …",
        show_default="local",
    ),
]


def compile_command(
    model: Model,
    output: Product = None,
    standalone: Standalone = False,
    target: Target = None,
    processors: Processors = "cpu",
    plans: Plans = None,
    threads: Threads = None,
    shape: Shape = None,
    batch: Batch = None,
    weights: Weights = None,
    design: DesignFile = None,
    engines: Engines = None,
    no_tune: NoTune = False,
    json: Json = False,
) -> None:
    """Plan a model for processors and write it as a package that `run` starts at once.

    With --plans it holds several, between which `run` changes while a processor is slow or fails. With --standalone,
    write a folder that needs neither Python nor any framework where it runs.

    Example: nnstretch compile resnet50.onnx --processors cpu:0-3 -o resnet50.nns
    """
    with reporting(as_json=json) as report:
        from nnstretch.cli.sources import make_source

        if target is not None and not standalone:
            raise UsageError("--target says where a standalone model runs; add --standalone, or leave it out")
        if engines and standalone:
            raise UsageError("a standalone model runs on native kernels alone; leave --engines or --standalone out")
        if plans and (standalone or processors != "cpu"):
            raise UsageError("--plans does not go with --standalone or --processors; leave one of them out")
        source = make_source(model, shape, weights, design, batch)
        if source.is_package:
            raise UsageError(f"{model} is a package already; give the model that it was made from")
        name, tune = Path(model.partition(":")[0]).stem, not no_tune
        if standalone:
            _standalone(report, source, name, output, target, processors, threads, tune=tune)
            return
        path = check_writable(output or Path(f"{name}.nns"))
        external_engines = parse_engines(engines)
        if lists := parse_plans(plans):
            _plans(report, source, path, lists, threads, external_engines, tune=tune)
        else:
            _package(report, source, path, processors, threads, external_engines, tune=tune)


def _package(
    report: Reporter,
    source: Source,
    path: Path,
    processors: str,
    threads: int | None,
    engines: Sequence[str],
    *,
    tune: bool,
) -> None:
    """Writes a package with one plan, and tells what that is."""
    with report.progress("Compiling") as told:
        session = source.compile(processors, threads, tune=tune, engines=engines, progress=told)
    with session:
        session.save(path, {**_origin(source, tuned=tune), "processors": processors, "macs": session.plan.macs})
    plan, size = session.plan, path.stat().st_size
    report.show(f"{path}: {_summary(plan)}, {size / 1e6:.1f} MB")
    if plan.fallback_layers:
        report.note(f"{len(plan.fallback_layers)} layers run on ONNX Runtime: {', '.join(plan.fallback_layers)}")
    if session.compiled.placement is not None:
        report.note(placement_text(session.compiled.placement, plan))
    report.finish({"file": str(path), "bytes": size, **_facts(plan)})


def _plans(
    report: Reporter,
    source: Source,
    path: Path,
    plans: Sequence[str],
    threads: int | None,
    engines: Sequence[str],
    *,
    tune: bool,
) -> None:
    """Writes a package with several plans, and tells what they take."""
    with report.progress("Compiling") as told:
        session = source.compile_plans(plans, threads, None, tune=tune, engines=engines, progress=told)
    with session:
        session.save(path, {**_origin(source, tuned=tune), "macs": session.plan.macs})
    size = path.stat().st_size
    report.show(f"{path}: {len(session.plans)} plans, {count_text(session.plan.macs)} MACs, {size / 1e6:.1f} MB")
    table = plain_table("plan", ">p50 ms", ">busy ms")
    for facts in session.facts:
        table.add_row(facts.name, f"{facts.seconds * 1e3:.3f}", f"{sum(facts.busy.values()) * 1e3:.3f}")
    report.show(table)
    taken = {
        facts.name: {
            "p50_ms": facts.seconds * 1e3,
            "busy_ms": {name: seconds * 1e3 for name, seconds in facts.busy.items()},
        }
        for facts in session.facts
    }
    report.finish({"file": str(path), "bytes": size, "macs": session.plan.macs, "plans": taken})


def _standalone(
    report: Reporter,
    source: Source,
    name: str,
    output: Path | None,
    target_name: str | None,
    processors: str,
    threads: int | None,
    *,
    tune: bool,
) -> None:
    from nnstretch.devices.engine.build.instruction_sets import parse_target
    from nnstretch.package.standalone import standalone_files, write_standalone

    target = parse_target(target_name or "local")
    name = re.sub(r"[^\w.+-]", "_", name)
    standalone_files(name, Path())  # refuses the name before long work, not after it
    folder = make_directory(output or Path(name))
    compiled = _plan(report, source, target, processors, threads, tune=tune)
    with report.progress("Building") as told:
        told(0, 0, f"the engine for {target}")
        files = write_standalone(compiled, name, target, folder)
    sizes = {what: path.stat().st_size for what, path in files.items()}
    report.show(
        f"{folder}: {_summary(compiled.plan)}, for {target}; {files['model'].name} {sizes['model'] / 1e6:.1f} MB, "
        f"{files['executable'].name} {sizes['executable'] / 1e6:.1f} MB"
    )
    report.finish(
        {
            "folder": str(folder),
            "target": str(target),
            "files": {what: {"file": str(path), "bytes": sizes[what]} for what, path in files.items()},
            **_facts(compiled.plan),
        }
    )


def _plan(
    report: Reporter, source: Source, target: BuildTarget, processors: str, threads: int | None, *, tune: bool
) -> Compiled:
    """A plan for the target's CPU: measured here if it is of this machine's kind."""
    from nnstretch.compiler.compile import plan_model
    from nnstretch.compiler.processors import build_processors, foreign_processors
    from nnstretch.devices.engine.build.instruction_sets import local_isa

    if target.isa == local_isa():
        usable = build_processors(processors, threads)
    else:
        usable = foreign_processors(target.isa, processors, threads)
        if tune:
            report.note(f"routines are chosen by estimates: those for {target.isa.name} cannot be measured here")
        tune = False
    with report.progress("Compiling") as told:
        return plan_model(source.load(), usable, tune=tune, progress=told)


def _origin(source: Source, *, tuned: bool) -> dict[str, Any]:
    """What a package remembers of how it was made."""
    return {"source": source.to_json(), "tuned": tuned}


def _summary(plan: Plan) -> str:
    return f"{len(plan.steps)} steps in {len(plan.subgraphs)} sub-graphs, {count_text(plan.macs)} MACs"


def _facts(plan: Plan) -> dict[str, Any]:
    return {
        "macs": plan.macs,
        "steps": len(plan.steps),
        "subgraphs": len(plan.subgraphs),
        "predicted_ms": plan.predicted_ms,
        "fallback_layers": list(plan.fallback_layers),
    }
