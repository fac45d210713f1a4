"""`nnstretch stretch`: find branchings of a network for the processors at hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nnstretch.cli.bounding import Learning, bounds_object, open_bounds, with_bounds
from nnstretch.cli.console import reporting
from nnstretch.cli.options import (
    Classes,
    Json,
    Network,
    Processors,
    Seed,
    SmallImages,
    Weights,
    make_directory,
    several_processors,
)
from nnstretch.cli.train import let_idle_threads_sleep
from nnstretch.durations import parse_milliseconds
from nnstretch.errors import UsageError

if TYPE_CHECKING:
    from nnstretch.branching.limits import SearchLimits

_LIMITS = "Limits"
_BOUNDS = "Learning bounds"
_ELSEWHERE = "Processors that are not here"


def stretch(
    model: Network,
    processors: Processors = "cpu,opencl",
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="DIR",
            help="Write designs, weights, ONNX files and a page that shows why there.",
            show_default=False,
        ),
    ] = None,
    top: Annotated[int, typer.Option("--top", min=1, metavar="K", help="How many designs to keep.")] = 3,
    target: Annotated[
        str | None,
        typer.Option(
            "--latency-target",
            metavar="TIME",
            help="Give the designs with the most MACs that take at most so long, as in 12ms.",
            show_default=False,
        ),
    ] = None,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Spread the designs over the front of latency and MACs.")
    ] = False,
    alpha: Annotated[
        float,
        typer.Option(
            "--alpha",
            min=0.0,
            help="A meeting point may cost this share of the segment before it.",
            rich_help_panel=_LIMITS,
        ),
    ] = 0.3,
    beta: Annotated[
        float,
        typer.Option(
            "--beta",
            min=0.0,
            help="A branch may take this share of the segment on the fastest processor.",
            rich_help_panel=_LIMITS,
        ),
    ] = 0.8,
    min_depth: Annotated[
        float | None,
        typer.Option(
            "--min-depth",
            help="A branch keeps this share of the segment's blocks, or more.",
            show_default="by the network's family",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    min_width: Annotated[
        float | None,
        typer.Option(
            "--min-width",
            help="A branch has this share of the segment's width, or more.",
            show_default="by the network's family",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    min_macs: Annotated[
        float | None,
        typer.Option(
            "--min-macs",
            help="The branches of a segment have this share of its MACs, or more.",
            show_default="0.8",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    max_segment: Annotated[
        float,
        typer.Option(
            "--max-segment",
            help="A segment has this share of the network's MACs, or less; then branches must meet.",
            rich_help_panel=_LIMITS,
        ),
    ] = 0.4,
    bounds: Annotated[
        Path | None,
        typer.Option(
            "--bounds",
            metavar="FILE",
            help="Take depth, width and MACs that are not given from what --learn-bounds found.",
            show_default=False,
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    learn_bounds: Annotated[
        bool,
        typer.Option(
            "--learn-bounds",
            help="First find the least depth, width and MACs that keep the accuracy, by short trainings; kept in --bounds.",
            rich_help_panel=_BOUNDS,
        ),
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="SET",
            help="To learn from: digits or folder:PATH.",
            show_default=False,
            rich_help_panel=_BOUNDS,
        ),
    ] = None,
    recipe: Annotated[
        str, typer.Option("--recipe", metavar="NAME", help="A preset, or a JSON file.", rich_help_panel=_BOUNDS)
    ] = "quick-retrain",
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance",
            metavar="POINTS",
            help="Top-1 that may be lost; or the standard error on the test images, if that is more.",
            rich_help_panel=_BOUNDS,
        ),
    ] = 0.2,
    budget: Annotated[
        int | None,
        typer.Option(
            "--budget",
            min=1,
            metavar="N",
            help="Trainings at most; about twelve are enough.",
            show_default=False,
            rich_help_panel=_BOUNDS,
        ),
    ] = None,
    predict_only: Annotated[
        bool,
        typer.Option(
            "--predict-only",
            help="Run nothing: predict all layers from profiles, and say what that may miss by.",
            rich_help_panel=_ELSEWHERE,
        ),
    ] = False,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            metavar="FILE",
            help="What `nnstretch profiles export` wrote on the machine of the processors.",
            show_default="this machine's",
            rich_help_panel=_ELSEWHERE,
        ),
    ] = None,
    merge: Annotated[
        str, typer.Option("--merge", metavar="HOW", help="How branches meet: concat, concat+1x1 or add.")
    ] = "concat",
    published: Annotated[
        Path | None,
        typer.Option(
            "--published",
            metavar="FILE",
            help="Make the branching of a YAML file of NN-Stretch's authors instead of searching.",
            show_default=False,
        ),
    ] = None,
    yaml: Annotated[
        bool, typer.Option("--yaml", help="Write designs as such YAML files, too, where these can say them.")
    ] = False,
    from_scratch: Annotated[
        bool, typer.Option("--from-scratch", help="Begin with new weights instead of inherited ones.")
    ] = False,
    learned: Annotated[
        bool | None,
        typer.Option(
            "--learned/--measure-all",
            help="Predict layers from those measured before and measure those of the best designs, or measure every one.",
            show_default="learned where xgboost is installed",
        ),
    ] = None,
    trials: Annotated[
        bool, typer.Option("--trials/--no-trials", help="Run the best design and share its work out anew.")
    ] = True,
    weights: Weights = None,
    num_classes: Classes = None,
    small_images: SmallImages = False,
    image_size: Annotated[
        int | None, typer.Option("--image-size", min=8, metavar="PIXELS", help="Side of the input.", show_default=False)
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Find branchings of a network, one branch per processor, best first; weights are inherited.

    Example: nnstretch stretch resnet18 --processors cpu:0,opencl:0@1 -o designs/
    """
    with reporting(as_json=json) as report:
        if learn_bounds:
            let_idle_threads_sleep()
        from nnstretch.branching.design import parse_merge
        from nnstretch.cli.finding import Wanted, find, show
        from nnstretch.cli.networks import Options, build_network
        from nnstretch.cli.predicting import doubts_object, opened_profiles
        from nnstretch.cli.publishing import make_published
        from nnstretch.cli.stretching import Writing, answer, write_all

        _refuse_alone({"--data": data, "--budget": budget}, "--learn-bounds", there=learn_bounds)
        _refuse_alone({"--profile": profile}, "--predict-only", there=predict_only)
        if predict_only and learned is False:
            raise UsageError("--measure-all runs layers and --predict-only runs nothing; give one of them")
        limits = _limits(alpha, beta, max_segment, target, min_depth=min_depth, min_width=min_width, min_macs=min_macs)
        wanted = Wanted(top, pareto, parse_merge(merge), learned, trials)
        writing = Writing(make_directory(output) if output else None, yaml, seed if from_scratch else None)
        learning = Learning(data, recipe, tolerance, budget) if learn_bounds else None
        known = open_bounds(bounds, writing.folder, learning)
        profiled = opened_profiles(profile, processors) if predict_only else None
        names = profiled.names if profiled else several_processors(processors, "a branching")
        network = build_network(model, Options(num_classes, small_images or None, None, image_size, seed), weights)
        if published is not None:
            make_published(report, network, published, names, writing)
            return
        bounded = known.of(report, network, names, wanted.merge, profiled) if known else None
        if bounded is not None:
            limits = with_bounds(limits, bounded.bounds, min_depth=min_depth, min_width=min_width, min_macs=min_macs)
        finding = find(report, network, names, limits, wanted, profiled)
        files, page = write_all(report, writing, network, names, finding.results)
        show(report, finding, names, profiled)
        report.finish(
            {
                **answer(finding.results, names, files, finding.errors),
                "page": page,
                **({"bounds": bounds_object(bounded)} if bounded else {}),
                **(doubts_object(finding.predicted, names) if finding.predicted else {}),
            }
        )
        if writing.folder is not None:
            report.note(f"wrote {len(files)} designs to {writing.folder}; {page} shows why these")
            report.note("retrain one, with the network as its teacher:")
            report.note(
                f"  nnstretch train {model} --design {files[0]} --weights {weights or 'FILE'} "
                f"--teacher {model}:{weights or 'FILE'} --recipe quick-retrain --data SET -o branched.safetensors"
            )


def _limits(alpha: float, beta: float, max_segment: float, target: str | None, **bounds: float | None) -> SearchLimits:
    """The limits that were asked for, the usual ones elsewhere.

    Raises:
        UsageError, DesignError: a number is out of range.
    """
    from nnstretch.branching.limits import SearchLimits

    target_ms = None if target is None else parse_milliseconds(target)
    given = {name: value for name, value in bounds.items() if value is not None}
    limits = SearchLimits(alpha=alpha, beta=beta, max_segment=max_segment, target_ms=target_ms, **given)
    limits.check()
    return limits


def _refuse_alone(options: Mapping[str, object], owner: str, *, there: bool) -> None:
    """Refuses options that mean nothing without another one."""
    for name, value in options.items():
        if value is not None and not there:
            raise UsageError(f"{name} is for {owner}; give that too, or leave it out")
