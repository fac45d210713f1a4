"""The bounds of `nnstretch stretch`: given, read from a file, or learned by short trainings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.errors import FileError, UsageError

if TYPE_CHECKING:
    from rich.table import Table
    from torch import nn

    from nnstretch.branching.bounds import Bounds
    from nnstretch.branching.bounds_file import LearnedBounds
    from nnstretch.branching.design import Merge
    from nnstretch.branching.limits import SearchLimits
    from nnstretch.cli.console import Progress, Reporter
    from nnstretch.cli.networks import Network
    from nnstretch.training.data import Dataset
    from nnstretch.training.loop import TrainingEvent
    from nnstretch.training.recipe import Recipe

BOUNDS = "bounds.json"
"""Name of the bounds in the folder of the designs."""


@dataclass(frozen=True)
class Learning:
    """How bounds are learned: what `nnstretch stretch` was asked for.

    Attributes:
        data: images to learn from and to be tested on; None: nobody said.
        recipe: of the trainings.
        tolerance: points of top-1 that may be lost.
        budget: trainings at most.
        file: where they are kept.
    """

    data: str | None
    recipe: str
    tolerance: float
    budget: int | None
    file: Path


def bounds_path(bounds: Path | None, folder: Path | None) -> Path:
    """Where learned bounds are kept.

    Raises:
        UsageError: nobody said.
    """
    if bounds is not None:
        return bounds
    if folder is not None:
        return folder / BOUNDS
    raise UsageError("--learn-bounds keeps what it has found in a file; say where with --bounds FILE or -o DIR")


def read_bounds(path: Path) -> LearnedBounds:
    """The bounds of a file, which must be finished.

    Raises:
        FileError: they are not, or the file cannot be read.
    """
    from nnstretch.branching.bounds_file import load_bounds

    found = load_bounds(path)
    if not found.bounds.complete:
        raise FileError(f"{path} holds bounds that were not found to the end; go on with --learn-bounds --bounds {path}")
    return found


def bounded(limits: SearchLimits, learned: LearnedBounds, given: SearchLimits) -> SearchLimits:
    """`limits` with learned bounds wherever nobody has given others.

    Args:
        limits: those to complete.
        learned: finished bounds.
        given: what was asked for; its bounds that differ from the usual ones stay.
    """
    from nnstretch.branching.limits import SearchLimits

    usual, changed = SearchLimits(), {}
    for name in ("min_depth", "min_width", "min_macs"):
        if getattr(given, name) == getattr(usual, name):
            changed[name] = getattr(learned.bounds, name)
    return replace(limits, **changed)


def learn(report: Reporter, network: Network, merge: Merge, multiple: int, learning: Learning) -> LearnedBounds:
    """Learns the bounds of a network; every finished training is kept, so that it goes on where it was ended.

    Raises:
        UsageError: no data, a tolerance or budget out of range, or a file of other trainings.
        ModelError: the network is not trained, or not for these data.
        DesignError: no bounds can be found.
    """
    from nnstretch.branching.bounds import Bounds, learn_bounds
    from nnstretch.branching.bounds_file import LearnedBounds, Subject, load_bounds, weights_digest
    from nnstretch.branching.build import blueprint
    from nnstretch.cli.options import check_writable
    from nnstretch.training.data import load_dataset
    from nnstretch.training.recipe import load_recipe

    if learning.data is None:
        raise UsageError("--learn-bounds trains networks; name images to learn from with --data")
    if not 0 <= learning.tolerance < 100:
        raise UsageError(f"--tolerance is {learning.tolerance:g}; give points of accuracy from 0 to 100")
    recipe = replace(load_recipe(learning.recipe), seed=network.options.seed, evaluate_every=0)
    dataset = load_dataset(learning.data, network.example_input.shape[-1], network.example_input.shape[1])
    _check_trained(network, dataset)
    subject = Subject(
        network.spec, weights_digest(network.module), learning.data, recipe.to_json(), merge.value, multiple
    )
    known = LearnedBounds(subject, Bounds(learning.tolerance, len(dataset.test)))
    if check_writable(learning.file).exists():
        known = known.resumed(load_bounds(learning.file), learning.file)

    def keep(bounds: Bounds) -> None:
        LearnedBounds(subject, bounds).save(learning.file)

    with report.progress("Learning bounds") as told:
        retraining = _Retraining(dataset, recipe, network.module, told)
        found = learn_bounds(
            blueprint(network.module, network.example_input, multiple, merge),
            network.module,
            retraining,
            known.bounds,
            keep,
            budget=learning.budget,
            progress=retraining.begin,
        )
    return LearnedBounds(subject, found)


def _check_trained(network: Network, dataset: Dataset) -> None:
    """Refuses a network that knows nothing of the data yet: what it loses would say nothing."""
    from nnstretch.errors import ModelError
    from nnstretch.training.evaluation import top1

    found, chance = top1(network.module, dataset), 1 / dataset.num_classes
    luck = 3 * (chance * (1 - chance) / len(dataset.test)) ** 0.5
    if found <= 100 * (chance + luck):
        raise ModelError(
            f"{network.spec} is right on {found:.1f} % of the test images of {dataset.name}, no more than by chance; train it "
            "first, and give the weights with --weights"
        )


class _Retraining:
    """Short trainings with the original as the teacher; a `Retrain`."""

    def __init__(self, dataset: Dataset, recipe: Recipe, teacher: nn.Module, told: Progress) -> None:
        self._dataset, self._recipe, self._teacher, self._told = dataset, recipe, teacher, told
        self._done, self._total = 0, 0

    def begin(self, what: str, done: int, total: int) -> None:
        """Tells which training comes now."""
        self._done, self._total = done, total
        self._told(done, total, what)

    def __call__(self, module: nn.Module, what: str) -> tuple[float, float]:
        from nnstretch.training.loop import train

        def tell(event: TrainingEvent) -> None:
            self._told(self._done, self._total, f"{what}, step {event.step}/{event.steps}, loss {event.loss:.2f}")

        result = train(module, self._dataset, self._recipe, self._teacher, tell)
        return result.top1, result.seconds


def bounds_table(learned: LearnedBounds) -> Table:
    """One row per training."""
    from nnstretch.report.text import plain_table

    bounds = learned.bounds
    shown = plain_table("retrained", ">depth", ">width", ">MACs", ">top-1", "within", ">s")
    for training in bounds.trainings:
        within = "yes" if training.top1 >= bounds.least - 1e-9 else "no"
        ratios = (f"{ratio:.2f}" for ratio in (training.depth, training.width, training.macs))
        shown.add_row(training.design or "original", *ratios, f"{training.top1:.2f}", within, f"{training.seconds:.0f}")
    shown.caption = (
        f"bounds: depth ≥ {bounds.min_depth:.2f}, width ≥ {bounds.min_width:.2f}, MACs ≥ {bounds.min_macs:.2f}; within: loses "
        f"{max(bounds.tolerance, bounds.margin):.2f} points at most (the tolerance is {bounds.tolerance:g}, the standard error "
        f"on {bounds.images} images {bounds.margin:.2f})"
    )
    shown.caption_justify = "left"
    return shown


def bounds_object(learned: LearnedBounds, path: Path) -> dict[str, Any]:
    """What `--json` prints of bounds."""
    bounds = learned.bounds
    return {
        "file": str(path),
        "model": learned.subject.model,
        "data": learned.subject.data,
        "min_depth": bounds.min_depth,
        "min_width": bounds.min_width,
        "min_macs": bounds.min_macs,
        "tolerance": bounds.tolerance,
        "margin": bounds.margin,
        "original_top1": bounds.original.top1 if bounds.original else None,
        "trainings": len(bounds.trainings),
    }
