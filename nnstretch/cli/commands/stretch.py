"""`nnstretch stretch`: find branchings of a network for the processors at hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.api.options import StretchOptions
from nnstretch.cli.commands.train import let_idle_threads_sleep
from nnstretch.cli.console import Reporter, reporting
from nnstretch.cli.options import (
    Classes,
    Json,
    Network,
    Seed,
    SmallImages,
    Weights,
    make_directory,
    several_processors,
    with_options,
)
from nnstretch.cli.stretching.bounds import BoundsLearning, bounds_object, open_bounds, with_bounds
from nnstretch.cli.stretching.options import (
    Budget,
    DesignsFolder,
    FromScratch,
    ImageSize,
    KnownBounds,
    LearnBounds,
    LearningData,
    LearningRecipe,
    MaxDrop,
    PredictOnly,
    ProfileFile,
    Published,
    Yaml,
)
from nnstretch.errors import UsageError

if TYPE_CHECKING:
    from nnstretch.branching.search.bounds_file import LearnedBounds
    from nnstretch.cli.networks import Network as BuiltNetwork
    from nnstretch.cli.stretching.files import DesignFiles
    from nnstretch.latency.profile_files import Profiled


@with_options(StretchOptions, defaults={"designs": 3})
def stretch_command(
    model: Network,
    output: DesignsFolder = None,
    *,
    options: StretchOptions,
    bounds: KnownBounds = None,
    learn_bounds: LearnBounds = False,
    data: LearningData = None,
    recipe: LearningRecipe = "quick-retrain",
    max_drop: MaxDrop = 0.2,
    budget: Budget = None,
    predict_only: PredictOnly = False,
    profile: ProfileFile = None,
    published: Published = None,
    yaml: Yaml = False,
    from_scratch: FromScratch = False,
    weights: Weights = None,
    num_classes: Classes = None,
    small_images: SmallImages = False,
    image_size: ImageSize = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Find branched designs of a network, one branch per processor, best first; weights are inherited.

    Example: nnstretch stretch resnet18 --processors cpu:0,opencl:0@1 -o designs/
    """
    with reporting(as_json=json) as report:
        if learn_bounds:
            let_idle_threads_sleep()
        from nnstretch.branching.design.design import parse_merge
        from nnstretch.cli.networks import NetworkOptions, build_network
        from nnstretch.cli.stretching.files import DesignFiles
        from nnstretch.cli.stretching.predict_only import opened_profiles
        from nnstretch.cli.stretching.published import make_published

        _refuse_alone({"--data": data, "--budget": budget}, "--learn-bounds", there=learn_bounds)
        _refuse_alone({"--profile": profile}, "--predict-only", there=predict_only)
        _refuse_together(
            predict_only=predict_only, learned=options.learned, published=published, bounds=bounds or learn_bounds
        )
        options.search_limits()  # refuses numbers out of range before the long work
        merge = parse_merge(options.merge)
        files = DesignFiles(make_directory(output) if output else None, yaml, seed if from_scratch else None)
        learning = BoundsLearning(data, recipe, max_drop, budget) if learn_bounds else None
        known = open_bounds(bounds, files.folder, learning)
        profiled = opened_profiles(profile, options.processors) if predict_only else None
        names = profiled.names if profiled else several_processors(options.processors, "a branching")
        network = build_network(
            model, NetworkOptions(num_classes, small_images or None, None, image_size, seed), weights
        )
        if published is not None:
            make_published(report, network, published, names, files)
            return
        bounded = known.of(report, network, names, merge, profiled) if known else None
        if bounded is not None:
            options = with_bounds(options, bounded.bounds)
        written = _search(report, network, replace(options, processors=",".join(names)), files, profiled, bounded)
        if written[0] is not None:
            report.note("retrain one, with the network as its teacher:")
            report.note(
                f"  nnstretch train {model} --design {written[0]} --weights {weights or 'FILE'} "
                f"--teacher {model}:{weights or 'FILE'} --recipe quick-retrain --data SET -o branched.safetensors"
            )


def _search(
    report: Reporter,
    network: BuiltNetwork,
    options: StretchOptions,
    files: DesignFiles,
    profiled: Profiled | None,
    bounded: LearnedBounds | None,
) -> Sequence[str | None]:
    """Finds designs, writes and shows them; returns their files, None for each if there is no folder."""
    from nnstretch.cli.stretching.answer import answer
    from nnstretch.cli.stretching.files import write_all
    from nnstretch.cli.stretching.predict_only import uncertainty_object
    from nnstretch.cli.stretching.search import find, show

    names = options.processors.split(",")
    found = find(report, network, options, profiled)
    paths, page = write_all(report, files, network, names, found.results)
    show(report, found, names, profiled)
    report.finish(
        {
            **answer(found.results, names, paths, found.errors),
            "page": page,
            **({"bounds": bounds_object(bounded)} if bounded else {}),
            **(uncertainty_object(found.predicted, names) if found.predicted else {}),
        }
    )
    if files.folder is not None:
        report.note(f"wrote {len(paths)} designs to {files.folder}; {page} explains them")
    return paths


def _refuse_alone(options: Mapping[str, object], owner: str, *, there: bool) -> None:
    """Refuses options that need another one."""
    for name, value in options.items():
        if value is not None and not there:
            raise UsageError(f"{name} needs {owner}; add that, or leave {name} out")


def _refuse_together(
    *, predict_only: bool, learned: bool | None, published: Path | None, bounds: Path | bool | None
) -> None:
    """Refuses options that contradict each other; `bounds`: a file of them, or whether they are to be learned."""
    if predict_only and learned is False:
        raise UsageError("--measure-all runs layers and --predict-only runs nothing; give one of them")
    if published is not None and (bounds or predict_only):
        raise UsageError(
            "--published builds the design of a file without searching; leave out --learn-bounds, --bounds and --predict-only"
        )
