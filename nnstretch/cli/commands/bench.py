"""`nnstretch bench`: engines side by side, and the ablation of a branching."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from nnstretch.api.options import CompileOptions
from nnstretch.cli.benchmarking.comparisons import ROUNDS, Compared
from nnstretch.cli.console import reporting
from nnstretch.cli.options import (
    DesignFile,
    ImageSizeOption,
    Json,
    Seed,
    Weights,
    check_writable,
    option,
    with_options,
)
from nnstretch.cli.targets.options import (
    Targets,
    TargetTiming,
    check_unused,
)
from nnstretch.support.durations import parse_milliseconds

ProcessorsOfBench = Annotated[
    str | None,
    option(
        "--processors -p LIST",
        "Compare these processors together with each alone; with --design, cpu,opencl by default.",
    ),
]
Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL...", help="ONNX files, packages, zoo names or module.py:factory.", show_default=False
    ),
]
Suite = Annotated[str | None, option("--suite -s NAME", "neocpu, mobile or all: networks of the zoo.")]
Against = Annotated[str, option("--against -a LIST", "ort, openvino, litert, torch, ncnn; commas between.")]
ThreadCounts = Annotated[
    str | None,
    option(
        "--threads -t N[,N]",
        "Cores of every engine; several counts are measured one after the other.",
        shown="1; on targets all",
    ),
]
Rounds = Annotated[int, option("--rounds -r R", "Rounds in which every engine is timed once.", minimum=1)]
Budget = Annotated[
    float, option("--budget SECONDS", "Seconds per engine and model after which no further round begins.", minimum=0)
]
Layers = Annotated[bool, option("--layers", "Show the time of each of our layers.")]
Start = Annotated[
    bool, option("--start", "Show the time from a file to the first result; each engine starts three times.")
]
Outputs = Annotated[
    list[Path] | None,
    option(
        "--output -o FILE",
        "Write results (.json) or their report (.html, .md, .csv, .svg, .png); the .csv of targets has NN-Stretch's columns. "
        "Repeatable.",
    ),
]
Resume = Annotated[bool, option("--resume", "Keep the results in --output's .json file and measure the rest.")]
OriginalWeights = Annotated[
    Path | None, option("--original-weights FILE", "With --design: weights of the original network.")
]

LatencyLimit = Annotated[
    str | None,
    option(
        "--latency-limit TIME",
        "With --design and --streams: the longest latency of an input, from begin to end, such as 12ms. Ways to run a network "
        "that miss it do not count.",
    ),
]

_AGAINST = "ort"


@with_options(TargetTiming, parameter="there")
@with_options(CompileOptions)
def bench_command(
    models: Models = None,
    suite: Suite = None,
    against: Against = _AGAINST,
    threads: ThreadCounts = None,
    rounds: Rounds = ROUNDS,
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
    image_size: ImageSizeOption = None,
    processors: ProcessorsOfBench = None,
    latency_limit: LatencyLimit = None,
    targets: Targets = None,
    there: TargetTiming,
    json: Json = False,
) -> int:
    """Compare the latency of engines on the same cores in interleaved rounds.

    With --design, compare a branched network with the original and with a single-branch network of equal MACs. With only
    --processors, compare a network on all of them together with each alone. With --streams, compare the throughput of
    several inputs in flight with one at a time and with ONNX Runtime; with --design and --streams, that of the branched network
    with those of its alternatives. With --target, compile models for other machines, such
    as phones and boards, and time them there by a runner that needs no Python; --budget is the measuring time per model.

    Example: nnstretch bench resnet18 mobilenetv2 --against ort,openvino,litert,torch,ncnn --threads 1,2 -o bench.html
    """
    outputs = output or []
    with reporting(as_json=json) as report:
        for path in outputs:
            check_writable(path)
        compared = Compared(
            models or [], suite, against, threads, rounds, budget, seed, layers, start, resume,
            design, weights, original_weights, image_size, processors, outputs, options,
            None if latency_limit is None else parse_milliseconds(latency_limit),
        )  # fmt: skip
        if not there.uses_runner(targets or []):
            compared.check()
            return compared.measure(report)
        from nnstretch.cli.targets.benchmark import TargetJob, bench_on_targets

        check_unused(
            {
                "--layers": layers,
                "--start": start,
                "--resume": resume,
                "--streams": options.streams,
                "--latency-limit": latency_limit,
                "--rounds": rounds != ROUNDS,
                "--against": against != _AGAINST,
            },
            "--target",
        )
        if design is not None:
            check_unused(
                {"--benchmark-model": there.benchmark_model}, "--design, whose branches TFLite runs one after the other"
            )
        job = TargetJob(
            compared.target_sources(report),
            there.options(budget, seed),
            seed,
            there.keep,
            has_alternatives=design is not None,
            benchmark_tool=there.benchmark_model,
            litert_library=there.litert_library,
        )
        return bench_on_targets(report, targets or [], job, outputs)
