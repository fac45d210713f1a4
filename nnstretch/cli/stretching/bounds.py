"""The bounds of `nnstretch stretch`: options, a file, or short trainings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.api.options import StretchOptions
from nnstretch.cli.options import check_writable
from nnstretch.cli.training import check_classification
from nnstretch.errors import FileError, UsageError
from nnstretch.support.image_size import size_of

if TYPE_CHECKING:
    from rich.table import Table
    from torch import nn

    from nnstretch.branching.design.design import Merge
    from nnstretch.branching.search.bounds import Bounds
    from nnstretch.branching.search.bounds_file import LearnedBounds
    from nnstretch.cli.console import Reporter
    from nnstretch.cli.models.networks import Network
    from nnstretch.compiler.profile_files import Profiled
    from nnstretch.support.progress import Progress
    from nnstretch.training.data.split import Dataset
    from nnstretch.training.loop.events import TrainingEvent
    from nnstretch.training.recipe import Recipe

BOUNDS = "bounds.json"
"""Name of the bounds in the folder of the designs."""


@dataclass(frozen=True)
class BoundsLearning:
    """How bounds are learned.

    Attributes:
        data: images to train and validate on; None: not given.
        recipe: of the trainings.
        max_drop: largest drop in top-1, in points.
        budget: trainings at most.
    """

    data: str | None
    recipe: str
    max_drop: float
    budget: int | None

    def check(self) -> None:
        """Checks the options.

        Raises:
            UsageError: no data, a tolerance out of range, or no such recipe.
        """
        from nnstretch.training.recipe_files import load_recipe

        if self.data is None:
            raise UsageError("--learn-bounds trains networks; name the training images with --data")
        if not 0 <= self.max_drop < 100:
            raise UsageError(f"--max-drop is {self.max_drop:g}; give points of accuracy from 0 to 100")
        load_recipe(self.recipe)


@dataclass(frozen=True)
class BoundsFile:
    """The file of bounds that a search is to use.

    Attributes:
        path: of the file.
        learning: how they are learned; None: the file has them.
    """

    path: Path
    learning: BoundsLearning | None = None

    def of(
        self, report: Reporter, network: Network, names: Sequence[str], merge: Merge, profiled: Profiled | None
    ) -> LearnedBounds:
        """The bounds of the file; learned first if there is a `learning`.

        Raises:
            FileError: the search for them is unfinished, or the file cannot be read or written.
            NNStretchError: they cannot be learned.
        """
        from nnstretch.compiler.processors import build_processors

        if self.learning is None:
            found = read_bounds(self.path)
            if found.setup.model != network.spec:
                report.note(f"{self.path}: learned of {found.setup.model}, not of {network.spec}")
            return found
        multiple = profiled.block if profiled else build_processors(",".join(names)).host.blocked.block
        found = _learned(report, network, merge, multiple, self.learning, self.path)
        report.show(bounds_table(found))
        return found


def open_bounds(path: Path | None, folder: Path | None, learning: BoundsLearning | None) -> BoundsFile | None:
    """The file of bounds that the options name; None if bounds play no part.

    Raises:
        UsageError: bounds are to be learned, and it is not said how or where they are kept.
        FileError: the file cannot be read or written.
    """
    if learning is None:
        if path is None:
            return None
        read_bounds(path)
        return BoundsFile(path)
    if path is None and folder is None:
        raise UsageError("--learn-bounds writes a file; name it with --bounds FILE or -o DIR")
    learning.check()
    return BoundsFile(check_writable(path or (folder or Path()) / BOUNDS), learning)


def read_bounds(path: Path) -> LearnedBounds:
    """The bounds of a file, which must be finished.

    Raises:
        FileError: they are not, or the file cannot be read.
    """
    from nnstretch.branching.search.bounds_file import load_bounds

    found = load_bounds(path)
    if not found.bounds.complete:
        raise FileError(f"{path} holds unfinished bounds; resume with --learn-bounds --bounds {path}")
    return found


def with_bounds(options: StretchOptions, learned: Bounds) -> StretchOptions:
    """The options with learned bounds where depth, width or MACs are not given."""
    names = ("min_depth", "min_width", "min_macs")
    return replace(options, **{name: getattr(learned, name) for name in names if getattr(options, name) is None})


def _learned(
    report: Reporter, network: Network, merge: Merge, multiple: int, learning: BoundsLearning, path: Path
) -> LearnedBounds:
    """Learns the bounds of a network. Every finished training is written to the file, so that an interrupted search resumes.

    Raises:
        UsageError: a file of other trainings.
        ModelError: the network is not trained, or not for these data.
        DesignError: no bounds can be found.
    """
    from nnstretch.branching.design.blueprint import blueprint
    from nnstretch.branching.search.bounds import Bounds, BoundsSearch
    from nnstretch.branching.search.bounds_file import BoundsSetup, LearnedBounds, load_bounds, weights_digest
    from nnstretch.training.data import load_dataset
    from nnstretch.training.data.unreadable import without_unreadable
    from nnstretch.training.recipe_files import load_recipe

    recipe = load_recipe(learning.recipe, network.spec)
    # All networks train equally long: their accuracies are compared.
    recipe = replace(recipe, seed=network.options.seed, evaluate_every=0, target_accuracy=0.0, patience=0)
    size, channels = size_of(*network.example_input.shape[2:]), network.example_input.shape[1]
    dataset = load_dataset(learning.data or "", size, channels, preprocessing=network.preprocessing)
    dataset = without_unreadable(dataset, ("validation",))
    if dataset.note:
        report.note(dataset.note)
    _check_trained(network, dataset)
    digest = weights_digest(network.module)
    setup = BoundsSetup(network.spec, digest, dataset.name, recipe.to_json(), merge.value, multiple)
    known = LearnedBounds(setup, Bounds(learning.max_drop, len(dataset.validation)))
    if path.exists():
        known = known.resumed(load_bounds(path), path)

    def keep(bounds: Bounds) -> None:
        LearnedBounds(setup, bounds).save(path)

    with report.progress("Learning bounds") as advance:
        retraining = _Retraining(dataset, recipe, network.module, advance)
        found = BoundsSearch(
            blueprint(network.module, network.example_input, multiple, merge),
            network.module,
            retraining,
            known.bounds,
            keep,
            budget=learning.budget,
            progress=retraining.begin,
        ).run()
    return LearnedBounds(setup, found)


def _check_trained(network: Network, dataset: Dataset) -> None:
    """Refuses a network that is no better than chance on the data: its accuracy loss would be meaningless."""
    from nnstretch.errors import ModelError
    from nnstretch.training.evaluation.accuracy import top1

    check_classification(dataset, "--learn-bounds")
    found, chance = top1(network.module, dataset.validation, dataset.num_classes), 1 / dataset.num_classes
    luck = 3 * (chance * (1 - chance) / len(dataset.validation)) ** 0.5
    if found <= 100 * (chance + luck):
        raise ModelError(
            f"{network.spec} has top-1 {found:.1f} % on the validation images of {dataset.name}, no better than chance; "
            "train it first, and give the weights with --weights"
        )


class _Retraining:
    """Short trainings with the original as the teacher; a `Retrain`."""

    def __init__(self, dataset: Dataset, recipe: Recipe, teacher: nn.Module, advance: Progress) -> None:
        self._dataset, self._recipe, self._teacher, self._advance = dataset, recipe, teacher, advance
        self._done, self._total = 0, 0

    def begin(self, done: int, total: int, what: str) -> None:
        """Reports which training starts."""
        self._done, self._total = done, total
        self._advance(done, total, what)

    def __call__(self, module: nn.Module, what: str) -> tuple[float, float]:
        from nnstretch.training.loop.trainer import train

        def tell(event: TrainingEvent) -> None:
            self._advance(self._done, self._total, f"{what}, step {event.step}/{event.steps}, loss {event.loss:.2f}")

        result = train(module, self._dataset, self._recipe, self._teacher, tell)
        return result.validation_score, result.seconds


def bounds_table(learned: LearnedBounds) -> Table:
    """One row per training."""
    from nnstretch.report.tables.text import plain_table

    bounds = learned.bounds
    assert bounds.min_depth is not None
    assert bounds.min_width is not None
    assert bounds.min_macs is not None
    shown = plain_table("retrained", ">depth", ">width", ">MACs", ">top-1", "within", ">s")
    for training in bounds.trainings:
        within = "yes" if training.top1 >= bounds.least - 1e-9 else "no"
        ratios = (f"{ratio:.2f}" for ratio in (training.depth, training.width, training.macs))
        shown.add_row(training.design or "original", *ratios, f"{training.top1:.2f}", within, f"{training.seconds:.0f}")
    shown.caption = (
        f"bounds: depth ≥ {bounds.min_depth:.2f}, width ≥ {bounds.min_width:.2f}, MACs ≥ {bounds.min_macs:.2f}; within: drop "
        f"of at most {max(bounds.tolerance, bounds.margin):.2f} points (the tolerance is {bounds.tolerance:g}, the standard "
        f"error on {bounds.images} images {bounds.margin:.2f})"
    )
    return shown


def bounds_object(learned: LearnedBounds) -> dict[str, Any]:
    """What `--json` prints of bounds."""
    bounds = learned.bounds
    return {
        "model": learned.setup.model,
        "data": learned.setup.data,
        "min_depth": bounds.min_depth,
        "min_width": bounds.min_width,
        "min_macs": bounds.min_macs,
        "tolerance": bounds.tolerance,
        "margin": bounds.margin,
        "original_top1": bounds.original.top1 if bounds.original else None,
        "trainings": len(bounds.trainings),
    }
