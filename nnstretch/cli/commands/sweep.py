"""`nnstretch sweep`: studies with Optuna."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nnstretch.api.options import CompileOptions, StretchOptions
from nnstretch.cli.console import reporting
from nnstretch.cli.models.network_request import NetworkRequest
from nnstretch.cli.options import (
    Json,
    Network,
    Seed,
    check_writable,
    option,
    results_directory,
    several_processors,
    with_options,
)
from nnstretch.cli.sweeping.study_request import PANEL, StudyRequest, options_named
from nnstretch.cli.training import let_idle_threads_sleep
from nnstretch.devices.targets.base import OTHER_MACHINES
from nnstretch.errors import UsageError
from nnstretch.support.durations import parse_milliseconds
from nnstretch.support.image_size import parse_image_sizes
from nnstretch.support.sizes import parse_bytes
from nnstretch.sweeps.objectives import FIDELITIES, REDUCTION, Fidelity, fidelity_of, objectives_help, parse_objectives
from nnstretch.sweeps.samplers import find_sampler, limit_openmp
from nnstretch.training.data import usage
from nnstretch.training.recipe_files import PRESETS

if TYPE_CHECKING:
    from nnstretch.sweeps.space import Form

_BOUNDS, _TRAINING = "Limits of designs", "Training"
_MIB = 2**20

SweepTargets = Annotated[
    list[str] | None,
    option(
        "--target TARGET",
        f"Predict and measure designs on another machine by a runner that needs no Python: {OTHER_MACHINES}. "
        "A branch for each cluster of cores, or for each of --processors. Repeatable for "
        "devices of one kind: each has a worker, and a trial is measured on one of them.",
        shown="this machine",
    ),
]

Objectives = Annotated[str, option("--objectives LIST", f"Values to optimise, commas between: {objectives_help()}.")]
FidelityName = Annotated[
    str | None,
    option(
        "--fidelity NAME",
        f"How thoroughly the best designs are evaluated: {', '.join(FIDELITIES)}.",
        shown="the first that knows all objectives",
    ),
]
Reduction = Annotated[
    int, option("--reduction N", "One design in N goes on to the next fidelity.", minimum=2, panel=PANEL)
]
WarmStart = Annotated[
    int,
    option(
        "--warm-start K", "Begin with K designs of the front that `nnstretch stretch --pareto` finds; 0: none.", minimum=0,
        panel=PANEL,
    ),
]  # fmt: skip
Workers = Annotated[int, option("--workers N", "Processes that share the study.", minimum=1, panel=PANEL)]
Worker = Annotated[int | None, typer.Option("--worker", hidden=True)]
Merges = Annotated[str, option("--merges LIST", "Merge modes to choose from: concat, concat+1x1, add.")]
ImageSizes = Annotated[
    str | None,
    option("--image-sizes LIST", "Sizes of the images to choose from, such as 160,192,48x160; without --data."),
]
Dtypes = Annotated[
    str,
    option(
        "--dtypes LIST", "Types of numbers to choose from: float32, int8. Designs in int8 are calibrated by --data."
    ),
]
MaxLatency = Annotated[
    str | None, option("--max-latency TIME", "Largest predicted latency, such as 12ms.", panel=_BOUNDS)
]
MaxMemory = Annotated[
    str | None, option("--max-memory SIZE", "Largest predicted memory, such as 48MB; a number is MiB.", panel=_BOUNDS)
]
MaxMacs = Annotated[float | None, option("--max-macs MILLIONS", "Most multiply-accumulates.", minimum=0, panel=_BOUNDS)]
Images = Annotated[str | None, option("--data SET", f"Images to train and validate on: {usage()}.", panel=_TRAINING)]
RecipeName = Annotated[
    str, option("--recipe NAME", f"Of the full training: {', '.join(PRESETS)}, or a YAML file.", panel=_TRAINING)
]
Devices = Annotated[
    list[str] | None,
    option(
        "--device NAME", "That trains: cpu, cuda:0 … Repeatable: workers take them in turn.", panel=_TRAINING,
        shown="cuda:0 where there is one",
    ),
]  # fmt: skip
Tune = Annotated[bool, option("--tune/--no-tune", "Tune designs before they are measured.")]
Work = Annotated[Path | None, option("--work DIR", "Folder for results that are not made twice.", shown="STUDY.work")]
FrontFolder = Annotated[
    Path | None, option("--output -o DIR", "Folder for the designs of the front, with their weights.")
]


@with_options(NetworkRequest, parameter="network")
@with_options(StudyRequest, parameter="study")
@with_options(StretchOptions, defaults={"processors": "cpu,opencl"})
def sweep_designs_command(
    model: Network,
    output: FrontFolder = None,
    objectives: Objectives = "latency,macs",
    fidelity: FidelityName = None,
    *,
    options: StretchOptions,
    merges: Merges = "concat",
    image_sizes: ImageSizes = None,
    dtypes: Dtypes = "float32",
    targets: SweepTargets = None,
    tune: Tune = True,
    study: StudyRequest,
    warm_start: WarmStart = 8,
    reduction: Reduction = REDUCTION,
    workers: Workers = 1,
    worker: Worker = None,
    work: Work = None,
    max_latency: MaxLatency = None,
    max_memory: MaxMemory = None,
    max_macs: MaxMacs = None,
    data: Images = None,
    recipe: RecipeName = "quick-retrain",
    device: Devices = None,
    network: NetworkRequest,
    json: Json = False,
) -> None:
    """Explore designs of a network for several objectives, and write those that no other one dominates.

    Trials of a study are designs. Each begins at the cheapest fidelity; the best third of those that have reached one goes on
    to the next. Several processes and machines may work on one study; trials of those that die are queued again.

    Example: nnstretch sweep designs resnet18 -p cpu:0,cpu:1 --objectives latency,memory,macs --trials 200 -o front/
    """
    with reporting(as_json=json) as report, options_named():
        let_idle_threads_sleep()
        wanted = parse_objectives(objectives)
        last = fidelity_of(wanted, fidelity)
        _check_training(model, network, last, data, image_sizes)
        _prepare_sampler(study.sampler, last)
        chosen = _checked_targets(targets, options.processors, workers)
        from nnstretch.cli.sweeping.designs import DesignJob, about_job
        from nnstretch.sweeps.designs import SweepSpec
        from nnstretch.sweeps.feasibility import Bounds

        name = study.name(Path(model).name)
        spec = SweepSpec(
            forms=_forms(merges, image_sizes, dtypes),
            limits=options.search_limits(),
            bounds=Bounds(
                None if max_latency is None else parse_milliseconds(max_latency),
                None if max_memory is None else parse_bytes(max_memory, _MIB) / _MIB,
                max_macs,
            ),
            names=tuple(objective.name for objective in wanted),
            directions=tuple(objective.direction for objective in wanted),
            budget=study.budget,
            storage=study.storage,
            study=name,
            resume=study.resume,
            sampler=study.sampler,
            seed=network.seed,
            workers=len(chosen) or workers,
            warm=warm_start,
            reduction=reduction,
            learned=options.learned,
        )
        with results_directory(output if worker is None else None):  # workers write no results
            job = DesignJob(
                network.build(model), options.processors, chosen, wanted, last, spec, data, recipe, tuple(device or ()), tune,
                work or Path(f"{name}.work"), output, spec.workers, worker,
            )  # fmt: skip
            replace(job, spec=replace(spec, about=about_job(job, options))).run(report)


def _prepare_sampler(sampler: str, last: Fidelity) -> None:
    """Checks that there is such a sampler, and keeps its threads off measured cores where nothing is trained.

    Raises:
        UsageError: there is none.
    """
    find_sampler(sampler)
    if last < FIDELITIES["distilled"]:
        limit_openmp(sampler)


def _checked_targets(targets: Sequence[str] | None, processors: str, workers: int) -> tuple[str, ...]:
    """The targets that measure; none: this machine does.

    Raises:
        UsageError: one is not understood, processors are too few, or workers are given beside targets.
    """
    from nnstretch.cli.sweeping.places import check_targets

    chosen = tuple(targets or ())
    check_targets(chosen, [processors])
    if not chosen:
        several_processors(processors, "a branching")
    elif workers > 1:
        raise UsageError(f"--workers {workers} does not go with --target: each target has one worker; leave it out")
    return chosen


def _check_training(
    model: str, network: NetworkRequest, last: Fidelity, data: str | None, image_sizes: str | None
) -> None:
    """Refuses options that trainings cannot have.

    Args:
        model: the network's name or file.
        network: its options.
        last: the fidelity of the study's values.
        data: the images.
        image_sizes: sizes of images to choose from.

    Raises:
        UsageError: image sizes beside data, or accuracies of a network of the zoo without weights.
    """
    from nnstretch.cli.models.networks import is_of_zoo

    if data is not None and image_sizes is not None:
        raise UsageError("--image-sizes is for sweeps without --data: images have the size that the network learnt")
    if last >= FIDELITIES["distilled"] and network.weights is None and is_of_zoo(model):
        raise UsageError("accuracies need a trained network, which teaches the designs; give its --weights")


def _forms(merges: str, image_sizes: str | None, dtypes: str) -> tuple[Form, ...]:
    """The forms of the network to choose from.

    Raises:
        UsageError, DesignError: a size, type or merge mode is not understood.
    """
    from nnstretch.sweeps.space import forms_of

    return forms_of(_names(merges), parse_image_sizes(image_sizes), _names(dtypes))


def _names(text: str) -> list[str]:
    """Names with commas between."""
    return [name.strip() for name in text.split(",")]


Models = Annotated[
    list[str],
    typer.Argument(metavar="MODEL...", help="ONNX files, zoo names or module.py:factory.", show_default=False),
]
Batches = Annotated[str | None, option("--batches LIST", "Images per run, such as 1,4,16.", shown="1")]
ThreadCounts = Annotated[
    str | None, option("--thread-counts LIST", "Cores of the first CPU, such as 1,2.", shown="all")
]
LatencySizes = Annotated[
    str | None, option("--image-sizes LIST", "Sizes of the images, such as 160,48x160; not for files of a fixed size.")
]
ProcessorSets = Annotated[
    list[str] | None,
    option("--processors -p LIST", "Processors to run on; repeatable, to compare several sets.", shown="cpu"),
]
LatencyTargets = Annotated[
    list[str] | None,
    option(
        "--target TARGET",
        f"Measure on another machine by a runner that needs no Python: {OTHER_MACHINES}. "
        "Processors and threads are its own. Repeatable; targets come one after the other.",
        shown="this machine",
    ),
]
Seconds = Annotated[float, option("--seconds S", "Of timed runs per row.", minimum=0.01)]
Files = Annotated[
    list[Path] | None,
    option("--output -o FILE", "Write the table (.csv, .json) or charts (.html, .md, .svg, .png). Repeatable."),
]
TuneModels = Annotated[
    bool,
    option(
        "--tune/--no-tune",
        "Tune models before they are measured; --no-tune selects routines by estimates, and models may take "
        "several times as long.",
    ),
]


def sweep_latency_command(
    models: Models,
    batches: Batches = None,
    thread_counts: ThreadCounts = None,
    image_sizes: LatencySizes = None,
    processors: ProcessorSets = None,
    targets: LatencyTargets = None,
    tune: TuneModels = True,
    seconds: Seconds = 1.0,
    output: Files = None,
    json: Json = False,
) -> int:
    """Measure the latency of models over batch sizes, threads, image sizes, processors and targets.

    Every combination is one row. One that cannot be run has its reason in the row.

    Example: nnstretch sweep latency resnet18 mobilenetv2 --batches 1,4 --thread-counts 1,2 -o latency.csv
    """
    with reporting(as_json=json) as report:
        from nnstretch.cli.outputs import check_endings
        from nnstretch.cli.sweeping.latency import parse_list, sweep_latency
        from nnstretch.cli.sweeping.places import check_targets

        outputs = output or []
        check_endings(outputs, "latencies are", (".csv", ".json", ".html", ".md", ".svg", ".png"))
        for path in outputs:
            check_writable(path)
        check_targets(targets or (), processors or ())
        return sweep_latency(
            report,
            models,
            processors or ["cpu"],
            parse_list("--thread-counts", thread_counts, int),
            parse_image_sizes(image_sizes) or [None],
            parse_list("--batches", batches, int),
            CompileOptions(tune=tune),
            seconds,
            outputs,
            targets or (),
        )


AnyModel = Annotated[str, typer.Argument(metavar="MODEL", help="An ONNX file, a zoo name or module.py:factory.")]
LayerName = Annotated[str | None, option("--layer NAME", "Layer to tune.", shown="the one with the most MACs")]
Compare = Annotated[
    bool,
    option(
        "--compare/--no-compare",
        "Give coordinate descent and learned search as many measurements, and show their best.",
    ),
]
OneProcessor = Annotated[str, option("--processors -p NAME", "The processor that computes it.")]


@with_options(StudyRequest, parameter="study")
def sweep_tune_command(
    model: AnyModel,
    layer: LayerName = None,
    processors: OneProcessor = "cpu",
    *,
    study: StudyRequest,
    compare: Compare = True,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Search the routine parameters of one layer with Optuna, by the measurements of `tune`.

    The fastest settings stay in the profile store, and later tunings consider them.

    Example: nnstretch sweep tune resnet18 -p cpu:0 --trials 60
    """
    with reporting(as_json=json) as report, options_named():
        find_sampler(study.sampler)
        limit_openmp(study.sampler)
        from nnstretch.cli.models.sources import Source
        from nnstretch.cli.sweeping.tune import TuneJob
        from nnstretch.devices.base.spec import parse_processors
        from nnstretch.sweeps.study import StudySpec

        if len(parse_processors(processors)) > 1:
            raise UsageError(f"--processors {processors} names several; one computes the layer")
        name = study.name(f"{Path(model).name}-{layer or 'layer'}")
        source = Source(model, CompileOptions(processors))
        source.check_exists()
        TuneJob(
            source,
            layer,
            StudySpec(study.storage, name, ("ms",), ("minimize",), {}, study.resume),
            study.budget,
            study.sampler,
            seed,
            compare,
        ).run(report)


HELP = """Explore designs of a network, latencies of models, and routine parameters of a layer.

Example: nnstretch sweep designs resnet18 -p cpu:0,cpu:1 --trials 200 -o front/
"""
COMMANDS = {"designs": sweep_designs_command, "latency": sweep_latency_command, "tune": sweep_tune_command}
"""The commands of `nnstretch sweep` by name."""
