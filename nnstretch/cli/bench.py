"""`nnstretch bench`: engines side by side, and the proof of a branching."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnstretch.cli.console import Reporter, reporting
from nnstretch.cli.options import (
    DesignFile,
    Json,
    NoTune,
    Processors,
    Seed,
    Shape,
    Weights,
    check_writable,
)
from nnstretch.errors import UsageError
from nnstretch.report.text import count_text, plain_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nnstretch.bench.comparison import Comparison


def bench(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL…", help="ONNX files, packages, zoo names or module.py:factory.", show_default=False
        ),
    ],
    against: Annotated[
        str, typer.Option("--against", "-a", metavar="LIST", help="ort, openvino, torch; commas between.")
    ] = "ort",
    threads: Annotated[int, typer.Option("--threads", "-t", min=1, metavar="N", help="Cores for every engine.")] = 1,
    rounds: Annotated[int, typer.Option("--rounds", "-r", min=1, metavar="R", help="Turns of every engine.")] = 10,
    layers: Annotated[bool, typer.Option("--layers", help="Show the time of each of our layers.")] = False,
    shape: Shape = None,
    seed: Seed = 0,
    no_tune: NoTune = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write the JSON there too.", show_default=False),
    ] = None,
    design: DesignFile = None,
    weights: Weights = None,
    control_weights: Annotated[
        Path | None,
        typer.Option(
            "--original-weights", metavar="FILE", help="With --design: of the network as it was.", show_default=False
        ),
    ] = None,
    processors: Processors = "cpu,opencl",
    json: Json = False,
) -> None:
    """Time engines on the same cores with interleaved rounds; or, with --design, prove what a branching is worth.

    Example: nnstretch bench resnet18 mobilenetv2 --against ort,openvino,torch --threads 1
    """
    with reporting(as_json=json) as report:
        if output is not None:
            check_writable(output)
        if design is not None:
            if len(models) != 1:
                raise UsageError(f"--design is for one network; {len(models)} were given")
            answer = _prove(
                report, models[0], design, weights, control_weights, processors, rounds, seed, tune=not no_tune
            )
        else:
            if weights is not None:
                raise UsageError("--weights goes with --design; speed does not depend on weights")
            answer = _compare(
                report, models, against, threads, rounds, shape or [], seed, tune=not no_tune, layers=layers
            )
        if output is not None:
            _write(output, answer)
        report.finish(answer)


def _write(path: Path, answer: dict[str, Any]) -> None:
    import json as encoder

    from nnstretch.settings import atomic_write

    with atomic_write(path) as file:
        file.write(encoder.dumps(answer, indent=1).encode())


def _compare(
    report: Reporter,
    models: Sequence[str],
    against: str,
    threads: int,
    rounds: int,
    shape: list[str],
    seed: int,
    *,
    tune: bool,
    layers: bool,
) -> dict[str, Any]:
    from nnstretch.bench.comparison import OURS, Settings, compare, parse_engines
    from nnstretch.bench.machine import describe_machine
    from nnstretch.bench.subject import subject
    from nnstretch.devices.spec import usable_cores
    from nnstretch.frontends.onnx_file import parse_shapes

    engines = parse_engines(against)
    shapes = parse_shapes(shape)
    cores = usable_cores()[:threads]
    if len(cores) < threads:
        raise UsageError(f"--threads {threads}: this process may use {len(cores)} cores; give at most that many")
    settings = Settings(cores, rounds, tune=tune, layers=layers)
    found: list[Comparison] = []
    with ExitStack() as stack:
        # All models are read before the first is measured: a name that is wrong must not cost the others their results.
        subjects = [stack.enter_context(subject(model, shapes, seed)) for model in models]
        for model, one in zip(models, subjects, strict=True):
            with report.progress(Path(model).name) as told:
                found.append(compare(one, engines, settings, told))
    peaks = [float(c.facts[OURS]["peak_gflops_per_core"]) for c in found if OURS in c.facts]
    machine = describe_machine(cores, max(peaks, default=None))
    report.show(_comparison_table(found, [e.name for e in engines], machine))
    for comparison in found:
        _notes(report, comparison)
        if layers and OURS in comparison.facts:
            report.show(_layer_table(comparison))
    return {"machine": machine, "results": [c.to_json() for c in found]}


def _comparison_table(found: Sequence[Comparison], engines: Sequence[str], machine: dict[str, Any]) -> Any:
    title = (
        f"float32 latency in ms, p50 and (p90), on {machine['cores']} core{'s' * (machine['cores'] > 1)} of {machine['cpu']}; "
        f"FMA peak {machine['peak_gflops_per_core']:.0f} GFLOP/s per core"
    )
    shown = plain_table(
        "model", ">MACs", *(f">{name}" for name in engines), ">× best", ">of peak", ">error", title=title
    )
    for one in found:
        cells: list[str] = []
        for name in engines:
            times = one.latencies.get(name)
            cells.append(f"{times.p50_ms:.2f}\n({times.p90_ms:.2f})" if times else "failed")
        shown.add_row(
            Path(one.model).name,
            count_text(one.macs),
            *cells,
            "" if one.speedup is None else f"{one.speedup:.2f}",
            "" if one.peak_share is None else f"{one.peak_share:.0%}",
            "" if one.max_rel_error is None else f"{one.max_rel_error:.0e}",
        )
    return shown


def _notes(report: Reporter, comparison: Comparison) -> None:
    name = Path(comparison.model).name
    for engine, reason in comparison.errors.items():
        report.note(f"{name}: {engine} failed: {reason}")
    fallback = comparison.facts.get("nnstretch", {}).get("fallback_layers", [])
    if fallback:
        report.note(f"{name}: {len(fallback)} of our layers ran on ONNX Runtime: {', '.join(fallback)}")


def _layer_table(comparison: Comparison) -> Any:
    about = comparison.facts["nnstretch"]
    peak = float(about["peak_gflops_per_core"]) * comparison.threads
    shown = plain_table("layer", "op", "routine", ">ms", ">GFLOP/s", ">of peak", title=Path(comparison.model).name)
    for layer in about["layers"]:
        computes = layer["macs"] > 0
        shown.add_row(
            layer["name"],
            layer["op"],
            layer["routine"],
            f"{layer['ms']:.3f}",
            f"{layer['gflops']:.0f}" if computes else "",
            f"{layer['gflops'] / peak:.0%}" if computes else "",
        )
    return shown


def _prove(
    report: Reporter,
    model: str,
    design: Path,
    weights: Path | None,
    original_weights: Path | None,
    processors: str,
    rounds: int,
    seed: int,
    *,
    tune: bool,
) -> dict[str, Any]:
    from nnstretch.bench.proof import Settings, prove
    from nnstretch.branching.control import single_branch_control
    from nnstretch.cli.networks import Options, branch, build_network
    from nnstretch.frontends.torch_module import export
    from nnstretch.report.table import proof_table

    original = build_network(model, Options(seed=seed), original_weights)
    branched = build_network(model, original.options, weights, design) if weights else branch(original, design)
    assert branched.design is not None
    control = single_branch_control(
        original.module, original.example_input, branched.design.macs, branched.design.multiple
    )
    tops = {"original": original.about.get("top1"), "branched": branched.about.get("top1") if weights else None}
    with report.progress("Proving") as told:
        proof = prove(
            original.export(),
            export(control, original.example_input, input_names=["x"], output_names=["y"]),
            branched.export(),
            processors,
            top1={name: float(value) for name, value in tops.items() if value is not None},
            settings=Settings(rounds=rounds, tune=tune, seed=seed),
            progress=told,
        )
    report.show(proof_table(proof))
    if proof.onnxruntime_error:
        report.note(f"ONNX Runtime failed: {proof.onnxruntime_error}")
    return proof.to_json()
