"""`nnstretch stretch`: find branchings of a network for the processors at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.cli.commands.train import let_idle_threads_sleep
from nnstretch.cli.console import Reporter, reporting
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
from nnstretch.cli.stretching.bounds import Learning, bounds_object, open_bounds, with_bounds
from nnstretch.cli.stretching.options import (
    Alpha,
    Beta,
    Budget,
    DesignsFolder,
    FromScratch,
    HowToMerge,
    ImageSize,
    KnownBounds,
    LatencyTarget,
    LearnBounds,
    Learned,
    LearningData,
    LearningRecipe,
    MaxSegment,
    MinDepth,
    MinMacs,
    MinWidth,
    Pareto,
    PredictOnly,
    ProfileFile,
    Published,
    Tolerance,
    Top,
    Trials,
    Yaml,
)
from nnstretch.errors import UsageError
from nnstretch.support.durations import parse_milliseconds

if TYPE_CHECKING:
    from nnstretch.branching.search.bounds_file import LearnedBounds
    from nnstretch.branching.search.limits import SearchLimits
    from nnstretch.cli.networks import Network as BuiltNetwork
    from nnstretch.cli.stretching.files import Writing
    from nnstretch.cli.stretching.search import Wanted
    from nnstretch.latency.profile_files import Profiled


def stretch(
    model: Network,
    processors: Processors = "cpu,opencl",
    output: DesignsFolder = None,
    top: Top = 3,
    target: LatencyTarget = None,
    pareto: Pareto = False,
    alpha: Alpha = 0.3,
    beta: Beta = 0.8,
    min_depth: MinDepth = None,
    min_width: MinWidth = None,
    min_macs: MinMacs = None,
    max_segment: MaxSegment = 0.4,
    bounds: KnownBounds = None,
    learn_bounds: LearnBounds = False,
    data: LearningData = None,
    recipe: LearningRecipe = "quick-retrain",
    tolerance: Tolerance = 0.2,
    budget: Budget = None,
    predict_only: PredictOnly = False,
    profile: ProfileFile = None,
    merge: HowToMerge = "concat",
    published: Published = None,
    yaml: Yaml = False,
    from_scratch: FromScratch = False,
    learned: Learned = None,
    trials: Trials = True,
    weights: Weights = None,
    num_classes: Classes = None,
    small_images: SmallImages = False,
    image_size: ImageSize = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Find branchings of a network, one branch per processor, best first; weights are inherited.

    Example: nnstretch stretch resnet18 --processors cpu:0,opencl:0@1 -o designs/
    """
    with reporting(as_json=json) as report:
        if learn_bounds:
            let_idle_threads_sleep()
        from nnstretch.branching.design.design import parse_merge
        from nnstretch.cli.networks import Options, build_network
        from nnstretch.cli.stretching.files import Writing
        from nnstretch.cli.stretching.predict_only import opened_profiles
        from nnstretch.cli.stretching.published import make_published
        from nnstretch.cli.stretching.search import Wanted

        _refuse_alone({"--data": data, "--budget": budget}, "--learn-bounds", there=learn_bounds)
        _refuse_alone({"--profile": profile}, "--predict-only", there=predict_only)
        _refuse_together(predict_only=predict_only, learned=learned, published=published, bounds=bounds or learn_bounds)
        least = {"min_depth": min_depth, "min_width": min_width, "min_macs": min_macs}
        limits = _limits(alpha, beta, max_segment, target, least)
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
            limits = with_bounds(limits, bounded.bounds, least)
        files = _search(report, network, names, limits, wanted, writing, profiled, bounded)
        if files[0] is not None:
            report.note("retrain one, with the network as its teacher:")
            report.note(
                f"  nnstretch train {model} --design {files[0]} --weights {weights or 'FILE'} "
                f"--teacher {model}:{weights or 'FILE'} --recipe quick-retrain --data SET -o branched.safetensors"
            )


def _search(
    report: Reporter,
    network: BuiltNetwork,
    names: Sequence[str],
    limits: SearchLimits,
    wanted: Wanted,
    writing: Writing,
    profiled: Profiled | None,
    bounded: LearnedBounds | None,
) -> Sequence[str | None]:
    """Finds designs, writes and shows them; returns their files, None for those that were not to be written."""
    from nnstretch.cli.stretching.answer import answer
    from nnstretch.cli.stretching.files import write_all
    from nnstretch.cli.stretching.predict_only import uncertainty_object
    from nnstretch.cli.stretching.search import find, show

    finding = find(report, network, names, limits, wanted, profiled)
    files, page = write_all(report, writing, network, names, finding.results)
    show(report, finding, names, profiled)
    report.finish(
        {
            **answer(finding.results, names, files, finding.errors),
            "page": page,
            **({"bounds": bounds_object(bounded)} if bounded else {}),
            **(uncertainty_object(finding.predicted, names) if finding.predicted else {}),
        }
    )
    if writing.folder is not None:
        report.note(f"wrote {len(files)} designs to {writing.folder}; {page} shows why these")
    return files


def _limits(
    alpha: float, beta: float, max_segment: float, target: str | None, least: Mapping[str, float | None]
) -> SearchLimits:
    """The limits that were asked for, the usual ones elsewhere; `least` has those of depth, width and MACs, or None.

    Raises:
        UsageError, DesignError: a number is out of range.
    """
    from nnstretch.branching.search.limits import SearchLimits

    target_ms = None if target is None else parse_milliseconds(target)
    given = {name: value for name, value in least.items() if value is not None}
    limits = SearchLimits(alpha=alpha, beta=beta, max_segment=max_segment, target_ms=target_ms, **given)
    limits.check()
    return limits


def _refuse_alone(options: Mapping[str, object], owner: str, *, there: bool) -> None:
    """Refuses options that mean nothing without another one."""
    for name, value in options.items():
        if value is not None and not there:
            raise UsageError(f"{name} is for {owner}; give that too, or leave it out")


def _refuse_together(
    *, predict_only: bool, learned: bool | None, published: Path | None, bounds: Path | bool | None
) -> None:
    """Refuses options that contradict each other; `bounds`: a file of them, or whether they are to be learned."""
    if predict_only and learned is False:
        raise UsageError("--measure-all runs layers and --predict-only runs nothing; give one of them")
    if published is not None and (bounds or predict_only):
        raise UsageError(
            "--published makes the branching of a file and searches for none; leave out --learn-bounds, --bounds and "
            "--predict-only"
        )
