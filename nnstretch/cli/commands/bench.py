"""`nnstretch bench`: engines side by side, and the ablation of a branching."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nnstretch.api.options import CompileOptions
from nnstretch.cli.console import Reporter, reporting
from nnstretch.cli.engine_comparison import ComparisonRequest, check_endings, compare_models, write_json
from nnstretch.cli.options import (
    DesignFile,
    Json,
    Seed,
    Weights,
    check_writable,
    several_processors,
    with_options,
)
from nnstretch.cli.stretching.options import ImageSize
from nnstretch.errors import UsageError

if TYPE_CHECKING:
    from nnstretch.bench.timing.interleaving import MeasurementOptions
    from nnstretch.cli.sources import Source

ProcessorsOfBench = Annotated[
    str | None,
    typer.Option(
        "--processors",
        "-p",
        metavar="LIST",
        help="Compare these processors together with each alone; with --design, cpu,opencl by default.",
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
    typer.Option(
        "--threads",
        "-t",
        metavar="N[,N]",
        help="Cores of every engine; several counts are measured one after the other.",
    ),
]
Rounds = Annotated[
    int, typer.Option("--rounds", "-r", min=1, metavar="R", help="Rounds in which every engine is timed once.")
]
Budget = Annotated[
    float,
    typer.Option(
        "--budget", min=0, metavar="S", help="Seconds per engine and model after which no further round begins."
    ),
]
Layers = Annotated[bool, typer.Option("--layers", help="Show the time of each of our layers.")]
Start = Annotated[
    bool,
    typer.Option("--start", help="Show the time from a file to the first result; each engine starts three times."),
]
Outputs = Annotated[
    list[Path] | None,
    typer.Option(
        "--output",
        "-o",
        metavar="FILE",
        help="Write the results: .json; .html report of engines or --design; .svg chart of engines. Repeatable.",
        show_default=False,
    ),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Keep the results in --output's .json file and measure the rest.")
]
OriginalWeights = Annotated[
    Path | None,
    typer.Option(
        "--original-weights", metavar="FILE", help="With --design: weights of the original network.", show_default=False
    ),
]


_STREAMED_TURN = 0.5
"""Seconds of a turn with streams: long enough that filling and draining hardly count."""


@with_options(CompileOptions, only=("shapes", "batch", "streams", "tune", "tolerance", "plan", "target"))
def bench_command(
    models: Models = None,
    suite: Suite = None,
    against: Against = "ort",
    threads: ThreadCounts = "1",
    rounds: Rounds = 10,
    budget: Budget = 10.0,
    layers: Layers = False,
    start: Start = False,
    *,
    options: CompileOptions,
    seed: Seed = 0,
    output: Outputs = None,
    resume: Resume = False,
    design: DesignFile = None,
    weights: Weights = None,
    original_weights: OriginalWeights = None,
    image_size: ImageSize = None,
    processors: ProcessorsOfBench = None,
    json: Json = False,
) -> int:
    """Compare the latency of engines on the same cores in interleaved rounds.

    With --design, compare a branched network with the original and with a single-branch network of equal MACs. With only
    --processors, compare a network on all of them together with each alone. With --streams, compare the throughput of
    several inputs in flight with one at a time and with ONNX Runtime.

    Example: nnstretch bench resnet18 mobilenetv2 --against ort,openvino,litert,torch,ncnn --threads 1,2 -o bench.html
    """
    outputs = output or []
    with reporting(as_json=json) as report:
        for path in outputs:
            check_writable(path)
        if design is None and (weights is not None or original_weights is not None):
            raise UsageError("--weights and --original-weights go with --design; speed does not depend on weights")
        if design is None and image_size is not None:
            raise UsageError("--image-size goes with --design; without one, use --shape for dynamic inputs")
        if design is not None and (options.streams is not None or options.batch is not None):
            raise UsageError("--streams and --batch do not go with --design, which compares runs of single images")
        if options.plan is not None and (design is not None or processors is not None or suite is not None):
            raise UsageError(
                "--plan is for a comparison of engines on one model; leave --design, --processors and --suite out"
            )
        if design is None and processors is None and options.streams is None:
            request = ComparisonRequest(suite, against, threads, rounds, budget, layers, start, seed, options)
            return compare_models(report, models or [], request, outputs, resume=resume)

        from nnstretch.bench.timing.interleaving import MeasurementOptions, TimingOptions
        from nnstretch.cli.sources import Source

        measuring = MeasurementOptions(TimingOptions(rounds), tune=options.tune, seed=seed, tolerance=options.tolerance)
        if design is not None:
            model = _only_one(models or [], suite, "--design is for one network")
            files = BranchingFiles(design, weights, original_weights, image_size)
            _compare_designs(report, model, files, processors or "cpu,opencl", measuring, outputs)
        elif options.streams is not None:
            source = Source(_only_one(models or [], suite, "--streams is for one network"), options)
            measuring = replace(measuring, timing=TimingOptions(rounds, _STREAMED_TURN))
            _compare_streams(report, source, processors or "cpu", options.streams, measuring, outputs)
        elif processors is not None:
            model = _only_one(models or [], suite, "--processors is for one network, which is placed on them")
            _compare_processors(report, Source(model, options), processors, measuring, outputs)
        return 0


def _only_one(models: Sequence[str], suite: str | None, purpose: str) -> str:
    """The only model that was named.

    Raises:
        UsageError: there are others, or none.
    """
    if suite is not None or len(models) != 1:
        raise UsageError(f"{purpose}; {suite or len(models)} was given")
    return models[0]


def _compare_streams(
    report: Reporter,
    source: Source,
    processors: str,
    streams: int,
    options: MeasurementOptions,
    outputs: Sequence[Path],
) -> None:
    """Times one network with several inputs in flight; shows and writes the results."""
    from nnstretch.bench.throughput import measure_throughput
    from nnstretch.report.tables.throughput import memory_text, throughput_table

    check_endings(outputs, "a comparison of streams is", (".json",))
    if source.is_package:
        raise UsageError(f"{source.model} is a package with a fixed arrangement; give the model that it was made from")
    name = Path(source.model).name
    with report.progress("Comparing") as advance:
        found = measure_throughput(name, source.load(), processors, streams, options, advance)
    answer = found.to_json()
    for path in outputs:
        write_json(path, answer)
    report.show(throughput_table(found))
    if found.best.arrangement is not None:
        report.note(memory_text(found.best.arrangement))
    report.finish(answer)


def _compare_processors(
    report: Reporter, source: Source, processors: str, options: MeasurementOptions, outputs: Sequence[Path]
) -> None:
    """Times one network on several processors, together and alone; shows and writes the results."""
    from nnstretch.bench.placement import measure_together
    from nnstretch.report.tables.placement import together_table

    check_endings(outputs, "a comparison of processors is", (".json",))
    names = several_processors(processors, "a comparison of all with each")
    if source.is_package:
        raise UsageError(f"{source.model} is a package with a fixed placement; give the model that it was made from")
    with report.progress("Comparing") as advance:
        found = measure_together(Path(source.model).name, source.load(), names, options, advance)
    answer = found.to_json()
    for path in outputs:
        write_json(path, answer)
    report.show(together_table(found))
    report.finish(answer)


@dataclass(frozen=True)
class BranchingFiles:
    """Files of a design, of the branched network's weights and of the original's; and the input's side in pixels."""

    design: Path
    weights: Path | None
    original_weights: Path | None
    image_size: int | None


def _compare_designs(
    report: Reporter,
    model: str,
    files: BranchingFiles,
    processors: str,
    options: MeasurementOptions,
    outputs: Sequence[Path],
) -> None:
    """Measures original, control and branched network; shows and writes the results."""
    from nnstretch.bench.ablation.ablation import ablate
    from nnstretch.branching.transform.control import single_branch_control
    from nnstretch.cli.networks import NetworkOptions, branch, build_network
    from nnstretch.frontends.torch_module import export
    from nnstretch.report.pages.branching import report_html
    from nnstretch.report.tables.ablation import ablation_table, branches_table, causes_table
    from nnstretch.report.tables.text import count_text
    from nnstretch.support.settings import write_text

    check_endings(outputs, "a comparison of designs is", (".json", ".html"))
    several_processors(processors, "a comparison of designs")
    about = NetworkOptions(image_size=files.image_size, seed=options.seed)
    original = build_network(model, about, files.original_weights)
    if files.weights is None:
        branched = branch(original, files.design)
    else:
        branched = build_network(model, original.options, files.weights, files.design)
    made = branched.design
    assert made is not None
    is_for_this = original.macs == made.original_macs
    if not is_for_this:
        report.note(
            f"the design was made for {count_text(made.original_macs)} MACs, the network has {count_text(original.macs)}: "
            "the input or head differs (see --image-size), so the predictions do not apply"
        )
    control = single_branch_control(original.module, original.example_input, branched.macs, made.multiple)
    tops = {"original": original.about.get("top1"), "branched": branched.about.get("top1") if files.weights else None}
    with report.progress("Comparing") as advance:
        ablation = ablate(
            original.export(),
            export(control, original.example_input, input_names=["x"], output_names=["y"]),
            branched.export(),
            processors,
            top1={name: float(value) for name, value in tops.items() if value is not None},
            design=made if is_for_this else None,
            options=options,
            progress=advance,
        )
    answer = ablation.to_json()
    for path in outputs:
        if path.suffix == ".html":
            title = f"A branching of {Path(model).name}"
            write_text(path, report_html(ablation, {}, made, None, title))
        else:
            write_json(path, answer)
    report.show(ablation_table(ablation), causes_table(ablation), branches_table(ablation))
    if ablation.onnxruntime_error:
        report.note(f"ONNX Runtime failed: {ablation.onnxruntime_error}")
    report.finish(answer)
