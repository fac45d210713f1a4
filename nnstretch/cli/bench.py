"""`nnstretch bench`: engines side by side, and the proof of a branching."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from nnstretch.cli.comparing import Wishes, check_pages, compare_models, write_pages
from nnstretch.cli.console import Reporter, reporting
from nnstretch.cli.options import (
    Batch,
    DesignFile,
    Json,
    NoTune,
    Seed,
    Shape,
    Streams,
    Weights,
    check_writable,
    several_processors,
)
from nnstretch.errors import UsageError

ProcessorsOfBench = Annotated[
    str | None,
    typer.Option(
        "--processors",
        "-p",
        metavar="LIST",
        help="Time a network on these together and on each alone; with --design, cpu,opencl by default.",
        show_default=False,
    ),
]
Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL…]", help="ONNX files, packages, zoo names or module.py:factory.", show_default=False
    ),
]
Suite = Annotated[
    str | None,
    typer.Option(
        "--suite", "-s", metavar="NAME", help="neocpu, mobile or all: networks of the zoo.", show_default=False
    ),
]
Against = Annotated[
    str, typer.Option("--against", "-a", metavar="LIST", help="ort, openvino, litert, torch, ncnn; commas between.")
]
ThreadCounts = Annotated[
    str,
    typer.Option("--threads", "-t", metavar="N[,N]", help="Cores for every engine; several are measured in turn."),
]
Rounds = Annotated[int, typer.Option("--rounds", "-r", min=1, metavar="R", help="Turns of every engine.")]
Budget = Annotated[
    float,
    typer.Option("--budget", min=0, metavar="S", help="Seconds per engine and model after which rounds end early."),
]
Layers = Annotated[bool, typer.Option("--layers", help="Show the time of each of our layers.")]
Start = Annotated[
    bool,
    typer.Option("--start", help="Show what the way from a file to the first result takes; each engine starts thrice."),
]
Outputs = Annotated[
    list[Path] | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write the results there too: .json, .html (a report) or, but for --design, .svg (a picture).",
        show_default=False,
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Keep what is in the .json file of --output and measure the rest.")
]
OriginalWeights = Annotated[
    Path | None,
    typer.Option(
        "--original-weights", metavar="FILE", help="With --design: of the network as it was.", show_default=False
    ),
]


_STREAMED_TURN = 0.5
"""Seconds of a turn with streams: beginning and end of a turn count for less the longer it is."""


def bench(
    models: Models = None,
    suite: Suite = None,
    against: Against = "ort",
    threads: ThreadCounts = "1",
    rounds: Rounds = 10,
    budget: Budget = 10.0,
    layers: Layers = False,
    start: Start = False,
    shape: Shape = None,
    batch: Batch = None,
    streams: Streams = None,
    seed: Seed = 0,
    no_tune: NoTune = False,
    output: Outputs = None,
    resume: Resume = False,
    design: DesignFile = None,
    weights: Weights = None,
    control_weights: OriginalWeights = None,
    processors: ProcessorsOfBench = None,
    json: Json = False,
) -> int:
    """Time engines on the same cores with interleaved rounds; or, with --design, prove what a branching is worth.

    With --processors alone, one network is placed on several processors and timed on all of them and on each. With --streams,
    images per second of one network with several inputs on their way are compared with one at a time and with ONNX Runtime.

    Example: nnstretch bench resnet18 mobilenetv2 --against ort,openvino,litert,torch,ncnn --threads 1,2 -o bench.html
    """
    outputs = output or []
    with reporting(as_json=json) as report:
        for path in outputs:
            check_writable(path)
        if streams is not None:
            if suite is not None or design is not None or len(models or []) != 1:
                raise UsageError(
                    f"--streams is for one network without --design; {suite or len(models or [])} was given"
                )
            assert models is not None
            report.finish(
                _streams(report, models[0], processors or "cpu", streams, rounds, seed, shape, batch, tune=not no_tune)
            )
            return 0
        if design is not None:
            if suite is not None or len(models or []) != 1:
                raise UsageError(f"--design is for one network; {suite or len(models or [])} was given")
            assert models is not None
            check_pages(outputs)
            named = processors or "cpu,opencl"
            several_processors(named, "a proof, which compares one with all,")
            answer, page = _prove(
                report, models[0], design, weights, control_weights, named, rounds, seed, tune=not no_tune
            )
            for path in outputs:
                write_pages(path, answer, page)
            report.finish(answer)
            return 0
        if weights is not None:
            raise UsageError("--weights goes with --design; speed does not depend on weights")
        if processors is not None:
            if suite is not None or len(models or []) != 1:
                raise UsageError(
                    f"--processors is for one network, which is placed on them; {suite or len(models or [])} was given"
                )
            assert models is not None
            report.finish(_together(report, models[0], processors, rounds, seed, shape, batch, tune=not no_tune))
            return 0
        shapes = tuple(shape or ())
        wishes = Wishes(suite, against, threads, rounds, budget, layers, start, not no_tune, seed, shapes, batch)
        return compare_models(report, models or [], wishes, outputs, resume=resume)


def _streams(
    report: Reporter,
    model: str,
    processors: str,
    streams: int,
    rounds: int,
    seed: int,
    shape: list[str] | None,
    batch: int | None,
    *,
    tune: bool,
) -> dict[str, Any]:
    """The answer as JSON."""
    from nnstretch.bench.proof import Settings
    from nnstretch.bench.throughput import measure_throughput
    from nnstretch.cli.sources import make_source
    from nnstretch.report.throughput_text import memory_text, throughput_table

    source = make_source(model, shape, batch=batch)
    if source.is_package:
        raise UsageError(f"{model} is a package, whose plan is for one input; give the model that it was made from")
    settings = Settings(rounds=rounds, turn=_STREAMED_TURN, tune=tune, seed=seed)
    with report.progress("Comparing") as told:
        found = measure_throughput(Path(model).name, source.load(), processors, streams, settings, told)
    report.show(throughput_table(found))
    if found.best.arrangement is not None:
        report.note(memory_text(found.best.arrangement))
    return found.to_json()


def _together(
    report: Reporter,
    model: str,
    processors: str,
    rounds: int,
    seed: int,
    shape: list[str] | None,
    batch: int | None,
    *,
    tune: bool,
) -> dict[str, Any]:
    """The answer as JSON."""
    from nnstretch.bench.proof import Settings
    from nnstretch.bench.together import measure_together
    from nnstretch.cli.sources import make_source
    from nnstretch.report.placement_text import together_table

    names = several_processors(processors, "a comparison of all with each")
    source = make_source(model, shape, batch=batch)
    if source.is_package:
        raise UsageError(f"{model} is a package, which is placed already; give the model that it was made from")
    settings = Settings(rounds=rounds, tune=tune, seed=seed)
    with report.progress("Comparing") as told:
        found = measure_together(Path(model).name, source.load(), names, settings, told)
    report.show(together_table(found))
    return found.to_json()


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
) -> tuple[dict[str, Any], str]:
    """The answer as JSON and as a page."""
    from nnstretch.bench.proof import Settings, prove
    from nnstretch.branching.control import single_branch_control
    from nnstretch.cli.networks import Options, branch, build_network
    from nnstretch.frontends.torch_module import export
    from nnstretch.report.html import report_html
    from nnstretch.report.table import branches_table, causes_table, proof_table

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
            design=branched.design,
            settings=Settings(rounds=rounds, tune=tune, seed=seed),
            progress=told,
        )
    report.show(proof_table(proof), causes_table(proof), branches_table(proof))
    if proof.onnxruntime_error:
        report.note(f"ONNX Runtime failed: {proof.onnxruntime_error}")
    return proof.to_json(), report_html(proof, {}, branched.design, None, f"A branching of {Path(model).name}")
