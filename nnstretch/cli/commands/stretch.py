"""`nnstretch stretch`: find branchings of a network for the processors at hand."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from nnstretch.api.options import CompileOptions, StretchOptions
from nnstretch.cli.console import Reporter, reporting
from nnstretch.cli.models.network_request import NetworkRequest
from nnstretch.cli.options import (
    Json,
    Network,
    names_of_several,
    option,
    results_directory,
    several_processors,
    with_options,
)
from nnstretch.cli.stretching.bounds import BoundsLearning, bounds_object, open_bounds, with_bounds
from nnstretch.cli.targets.several import for_each_target, path_for_target
from nnstretch.cli.training import let_idle_threads_sleep
from nnstretch.devices.targets.base import OTHER_MACHINES
from nnstretch.errors import UsageError
from nnstretch.support.words import counted
from nnstretch.training.data import usage
from nnstretch.training.recipe_files import PRESETS

if TYPE_CHECKING:
    from nnstretch.branching.search.bounds_file import LearnedBounds
    from nnstretch.cli.models.networks import Network as BuiltNetwork
    from nnstretch.cli.stretching.files import DesignFiles
    from nnstretch.compiler.profile_files import Profiled
    from nnstretch.compiler.targets.opened import OpenTarget

_BOUNDS = "Learning bounds"
_ELSEWHERE = "Processors of another machine"

DesignsFolder = Annotated[
    Path | None,
    option("--output -o DIR", "Folder for the designs, their weights and ONNX files, and a page that explains them."),
]
KnownBounds = Annotated[
    Path | None,
    option("--bounds FILE", "File of bounds that --learn-bounds wrote; the options above override it.", panel="Limits"),
]
LearnBounds = Annotated[
    bool,
    option(
        "--learn-bounds",
        "Find the smallest depth, width and MACs that keep the accuracy by short trainings, and write them to --bounds.",
        panel=_BOUNDS,
    ),
]
LearningData = Annotated[str | None, option("--data SET", f"Images to train and test on: {usage()}.", panel=_BOUNDS)]
LearningRecipe = Annotated[
    str,
    option("--recipe NAME", f"Recipe of the trainings: a preset ({', '.join(PRESETS)}) or a YAML file.", panel=_BOUNDS),
]
MaxDrop = Annotated[
    float,
    option(
        "--max-drop POINTS",
        "Largest drop in top-1 accuracy, or its standard error on the validation images if that is larger.",
        panel=_BOUNDS,
    ),
]
Budget = Annotated[
    int | None,
    option("--budget TRAININGS", "Maximum number of trainings; about twelve are enough.", minimum=1, panel=_BOUNDS),
]
PredictOnly = Annotated[
    bool,
    option(
        "--predict-only",
        "Predict all layers from profiles without running anything, and report the uncertainty.",
        panel=_ELSEWHERE,
    ),
]
ProfileFile = Annotated[
    Path | None,
    option(
        "--profile FILE",
        "Profiles that `nnstretch profiles export` wrote on the other machine.",
        shown="this machine's",
        panel=_ELSEWHERE,
    ),
]
TargetsOfDesigns = Annotated[
    list[str] | None,
    option(
        "--target TARGET",
        f"Measure layers on another machine by a runner that needs no Python: {OTHER_MACHINES}. "
        "A branch for each cluster of cores, or for each of --processors; designs do not run there. "
        "Repeatable; the designs for one of several targets are in a folder with its name.",
        panel=_ELSEWHERE,
    ),
]
Published = Annotated[
    Path | None,
    option(
        "--published FILE",
        "Build the design of a YAML file in the format of NN-Stretch's authors instead of searching.",
    ),
]
Yaml = Annotated[bool, option("--yaml", "Also write each design in that YAML format, if the format can describe it.")]
FromScratch = Annotated[bool, option("--from-scratch", "Write new weights instead of inherited ones.")]


@with_options(NetworkRequest, parameter="network")
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
    targets: TargetsOfDesigns = None,
    published: Published = None,
    yaml: Yaml = False,
    from_scratch: FromScratch = False,
    network: NetworkRequest,
    json: Json = False,
) -> int:
    """Find branched designs of a network, one branch per processor, best first; weights are inherited.

    A design that ran comes before those whose latency is predicted.

    Example: nnstretch stretch resnet18 --processors cpu:0,opencl:0@1 -o designs/
    """
    with reporting(as_json=json) as report:
        let_idle_threads_sleep()
        from nnstretch.branching.design.design import parse_merge
        from nnstretch.cli.stretching.files import DesignFiles, make_published
        from nnstretch.cli.stretching.search import opened_profiles

        searching = {"--predict-only": predict_only, "--learn-bounds": learn_bounds}
        _check_needed("--learn-bounds", learn_bounds, {"--data": data, "--budget": budget})
        _check_needed("--predict-only", predict_only, {"--profile": profile})
        elsewhere = {"--predict-only": predict_only, "--target": targets, "--published": published}
        _check_runs(options, elsewhere)
        if targets:
            _check_alone("--target", "measures layers on another machine", {**searching, "--published": published})
        if published is not None:
            _check_alone(
                "--published", "builds the design of a file without searching", {**searching, "--bounds": bounds}
            )
        options.search_limits()  # refuses numbers out of range before the long work
        merge = parse_merge(options.merge)
        learning = BoundsLearning(data, recipe, max_drop, budget) if learn_bounds else None
        profiled = opened_profiles(profile, options.processors) if predict_only else None

        def work(report: Reporter, target: str) -> int:
            with ExitStack() as stack:
                place = path_for_target(output, target, targets or [""]) if output else None
                folder = stack.enter_context(results_directory(place))
                files = DesignFiles(folder, yaml, network.seed if from_scratch else None)
                known = open_bounds(bounds, files.folder, learning)
                opened = stack.enter_context(_opened(report, target, options)) if target else None
                names = _names(options, profiled, opened)
                original = network.build(model)
                if published is not None:
                    make_published(report, original, published, names, files)
                    return 0
                bounded = known.of(report, original, names, merge, profiled) if known else None
                limited = options if bounded is None else with_bounds(options, bounded.bounds)
                limited = replace(limited, processors=",".join(names))
                found = _search(report, original, limited, files, profiled, bounded, opened)
            _advise(report, original, found, network.weights)
            if output is None:
                report.note("nothing was written; -o FOLDER keeps designs, with their weights and ONNX files")
            return 0

        return for_each_target(report, targets or [""], work)


def _check_runs(options: StretchOptions, elsewhere: Mapping[str, object]) -> None:
    """Refuses options that say how layers and designs run together with those by which they do not run here.

    Args:
        options: of the search.
        elsewhere: options by which this machine does not say what designs take, with their values.

    Raises:
        UsageError: two options contradict each other.
    """
    if options.learned is False:
        _check_alone("--measure-all", "runs layers", {"--predict-only": elsewhere["--predict-only"]})
    if options.fresh:
        _check_alone("--fresh", "runs designs again", {**_without_runs(options), **elsewhere})


def _check_needed(option: str, is_given: bool, others: Mapping[str, object]) -> None:
    """Refuses options that mean nothing without another one.

    Raises:
        UsageError: one of `others` is given, and `option` is not.
    """
    for name, value in others.items():
        if value is not None and not is_given:
            raise UsageError(f"{name} needs {option}; add that, or leave {name} out")


def _check_alone(option: str, does: str, others: Mapping[str, object]) -> None:
    """Refuses options that do not go with another one, which is given.

    Raises:
        UsageError: one of `others` is given, too.
    """
    given = [name for name, value in others.items() if value]
    if given:
        raise UsageError(f"{option} {does}; leave {', '.join(given)} out")


def _without_runs(options: StretchOptions) -> dict[str, bool]:
    """Options with which no design runs, and whether they are given."""
    return {
        "--no-measure": not options.measure,
        "--pareto": options.pareto,
        "--latency-target": options.target_ms is not None,
    }


def _names(options: StretchOptions, profiled: Profiled | None, opened: OpenTarget | None) -> tuple[str, ...]:
    """The processors of the branches: a target's, a profile's or this machine's. Raises UsageError if there is only one."""
    if opened is not None:
        return names_of_several([p.name for p in opened.processors.named], "a branching")
    return profiled.names if profiled else several_processors(options.processors, "a branching")


def _opened(report: Reporter, target: str, options: StretchOptions) -> AbstractContextManager[OpenTarget]:
    """A target with the processors of the options, by default its clusters."""
    from nnstretch.cli.targets.tuning import opened_target

    is_default = options.processors == StretchOptions.processors
    return opened_target(report, CompileOptions(options.processors, target=target), clusters=is_default)


@dataclass(frozen=True)
class _Found:
    """What decides the advice after a search.

    Attributes:
        design: file of the best branched design; None without one.
        unbranched_on: processors on which the network without branches is predicted to be as fast; None: branching pays.
        is_elsewhere: whether these are of another machine.
    """

    design: str | None
    unbranched_on: str | None
    is_elsewhere: bool


def _advise(report: Reporter, network: BuiltNetwork, found: _Found, weights: Path | None) -> None:
    """Says for which images designs are if nobody said it, and shows the commands that come next."""
    from nnstretch.cli.stretching.search import size_text

    if network.options.image_size is None and not _has_fixed_size(network.spec):
        report.note(f"designs are for images of {size_text(network)}; --image-size names another size")
    if found.unbranched_on is not None:
        _advise_unbranched(report, network, found, found.unbranched_on, weights)
    if found.design is None:
        return
    model = network.spec
    instead = "retrain one" if found.unbranched_on is None else "to retrain a design all the same"
    report.note(f"{instead}, with the network as its teacher:")
    known = weights or "FILE"
    inherited, teacher = f" --weights {known}", f"{model}:{known}"
    if weights is None and network.interface is not None:  # the weights are in the model's file
        inherited, teacher = "", model
    report.command(
        f"nnstretch train {model} --design {found.design}{inherited} --teacher {teacher} --recipe quick-retrain --data SET "
        "-o branched.safetensors"
    )


def _has_fixed_size(spec: str) -> bool:
    """Whether a network is in a file that says which size its images have."""
    from nnstretch.frontends.resolve import file_input_shape, is_model_file

    return is_model_file(spec) and all(file_input_shape(spec)[2:])


def _advise_unbranched(
    report: Reporter, network: BuiltNetwork, found: _Found, processors: str, weights: Path | None
) -> None:
    """Shows the command that prepares the network without branches to run where it is predicted to be fastest."""
    from nnstretch.devices.base.spec import is_simulated

    if found.is_elsewhere or any(map(is_simulated, processors.split(","))):
        report.note(f"run the network without branches, on {processors}")
        return
    given = "" if weights is None else f" --weights {weights}"
    instead = " (--even-if-slower gives the best branched design all the same)" if found.design is None else ""
    report.note(f"prepare the network without branches{instead}, with")
    report.command(f"nnstretch compile {network.spec}{given} -p {processors} -o {Path(network.spec).stem}.nns")


def _search(
    report: Reporter,
    network: BuiltNetwork,
    options: StretchOptions,
    files: DesignFiles,
    profiled: Profiled | None,
    bounded: LearnedBounds | None,
    target: OpenTarget | None,
) -> _Found:
    """Finds designs, writes and shows them."""
    from nnstretch.cli.stretching.answer import answer
    from nnstretch.cli.stretching.files import write_all
    from nnstretch.cli.stretching.search import find, show, uncertainty_object

    names = options.processors.split(",")
    began = time.perf_counter()
    found = find(report, network, options, profiled, target)
    seconds = time.perf_counter() - began
    paths, page = write_all(report, files, network, names, found.results)
    show(report, found, names, profiled)
    report.finish(
        {
            **answer(found.results, names, paths, found.errors),
            "search_s": seconds,
            "page": page,
            **({"bounds": bounds_object(bounded)} if bounded else {}),
            **(uncertainty_object(found, names) if found.uncertainty else {}),
            "clocks": dict(found.clocks),
            "present_ms": {one.design.id: found.present_ms(one.design) for one in found.results},
        }
    )
    if files.folder is not None:
        count = f"{counted(len(paths), 'design')}"
        report.note(f"wrote {count} to {files.folder}; {page} explains them")
    search = found.results[0].report
    return _Found(
        design=None if search.stays_unbranched else paths[0],
        unbranched_on=search.faster_unbranched(found.results[0].design, names),
        is_elsewhere=profiled is not None or target is not None,
    )
