"""How shallow, narrow and small branches may be, found by short trainings.

NN-Stretch guarantees capacity by hard lower bounds, because networks with extremely shallow or narrow branches lose accuracy.
Where a network's own bounds are wanted, networks are trained whose stages have two equal branches: shallower and shallower at
full width, narrower and narrower at full depth, then scaled in both alike. Each begins with inherited weights and is retrained
briefly; the original is retrained the same way and is what the others are compared with, so that what the training itself
gains or loses does not count. Accuracy is taken to fall with depth, width and multiply-accumulates, so that bisection finds
the least of each that stays within a tolerance.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from torch import nn

from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, SegmentChoice
from nnstretch.branching.design.design import Design
from nnstretch.branching.design.from_choices import make_design, segment_cost
from nnstretch.branching.tracing.trace import Segment
from nnstretch.branching.transform.build import build
from nnstretch.errors import DesignError
from nnstretch.support.progress import Progress, silent

TOLERANCE = 0.2
"""Points of top-1 accuracy that a branched network may lose, if nobody says."""

_WIDTHS = 16  # width ratios are multiples of one over this
_NARROWEST = 2  # of these
_DIAGONAL = 32  # steps in which depth and width are scaled alike
_MACS_APART = 0.05  # multiply-accumulates of networks that are compared, over the original's, differ by this
_LARGEST = 1.25  # MACs of branches over the original's: nobody needs a bound beyond


@dataclass(frozen=True)
class BoundsCandidate:
    """A network whose stages have two equal branches.

    Attributes:
        depth, width: of every branch, at least; the nearest that the stages can have are taken.
        design: the network.
        macs: multiply-accumulates of the branches over those of the stages that they stand for.
    """

    depth: float
    width: float
    design: Design
    macs: float

    def __str__(self) -> str:
        return f"depth {self.depth:.2f}, width {self.width:.2f}, MACs {self.macs:.2f}"


@dataclass(frozen=True)
class ShortTraining:
    """A short training that was finished.

    Attributes:
        design: id of the network's design; empty: the original.
        depth, width, macs: ratios of its branches.
        top1: in percent, on the test images.
        seconds: it took.
    """

    design: str
    depth: float
    width: float
    macs: float
    top1: float
    seconds: float


@dataclass(frozen=True)
class Bounds:
    """What was found so far.

    Attributes:
        tolerance: points of top-1 that a branched network may lose.
        images: test images. By chance alone accuracy on so many is off by `margin` points, which may be lost too if it is more.
        min_depth, min_width, min_macs: the bounds, as in `SearchLimits`; None: not known yet.
        trainings: all that were finished, in their order.
    """

    tolerance: float = TOLERANCE
    images: int = 0
    min_depth: float | None = None
    min_width: float | None = None
    min_macs: float | None = None
    trainings: tuple[ShortTraining, ...] = ()

    @property
    def original(self) -> ShortTraining | None:
        """The training of the original."""
        return next((training for training in self.trainings if not training.design), None)

    @property
    def margin(self) -> float:
        """Standard error of the original's accuracy on the test images, in points."""
        if self.original is None or not self.images:
            return 0.0
        # One image right and one wrong more, so that a perfect score does not count as certain.
        share = (self.original.top1 / 100 * self.images + 1) / (self.images + 2)
        return 100 * math.sqrt(share * (1 - share) / self.images)

    @property
    def least(self) -> float:
        """Top-1 that a network must have to be within the tolerance, in percent."""
        return (self.original.top1 if self.original else math.nan) - max(self.tolerance, self.margin)

    @property
    def complete(self) -> bool:
        """Whether all three bounds are known."""
        return None not in (self.min_depth, self.min_width, self.min_macs)


class Retrain(Protocol):
    """Trains networks for a short while."""

    def __call__(self, module: nn.Module, what: str, /) -> tuple[float, float]:
        """Trains `module` in place, which is called `what`; returns top-1 in percent on the test images, and seconds."""


def learn_bounds(
    blueprint: Blueprint,
    original: nn.Module,
    retrain: Retrain,
    known: Bounds,
    keep: Callable[[Bounds], None],
    *,
    budget: int | None = None,
    progress: Progress | None = None,
) -> Bounds:
    """Finds the bounds of a network.

    Args:
        blueprint: the network.
        original: the module that it was made of; left alone.
        retrain: trains networks.
        known: tolerance and test images, and the trainings that an earlier call has finished, which are not repeated.
        keep: called after every training with all that is known.
        budget: trainings at most, those of earlier calls among them.
        progress: told what is trained, how many trainings are done and how many there are about.

    Raises:
        DesignError: nothing can be branched, or nothing stays within the tolerance, or the budget ended before.
    """
    return _BoundsSearch(blueprint, original, retrain, keep, budget, progress or silent, known).run()


@dataclass(eq=False)
class _BoundsSearch:
    blueprint: Blueprint
    original: nn.Module
    retrain: Retrain
    keep: Callable[[Bounds], None]
    budget: int | None
    progress: Progress
    bounds: Bounds
    expected: int = field(default=0, init=False)

    def run(self) -> Bounds:
        depths, widths = candidates_by_depth(self.blueprint), candidates_by_width(self.blueprint)
        self.bounds = replace(self.bounds, min_depth=None, min_width=None, min_macs=None)
        self.expected = 1 + _bisections(depths) + 2 * _bisections(widths)
        self._reference()
        depth = self._least(depths, "depth").depth
        self._found(replace(self.bounds, min_depth=depth))
        width = self._least(widths, "width").width
        self._found(replace(self.bounds, min_width=width))
        smallest, *larger = candidates_by_macs(self.blueprint, depth, width)
        found = self._least([smallest, *larger], "number of MACs")
        # The smallest network that the other bounds leave may be larger than the original.
        macs = min(found.macs, 1.0) if found is smallest else found.macs
        self._found(replace(self.bounds, min_macs=math.floor(1000 * macs) / 1000))
        self.progress(self.expected, self.expected, "done")
        return self.bounds

    def _reference(self) -> None:
        """Retrains the original, unless that was done."""
        if self.bounds.original is None:
            top1, seconds = self._trained(copy.deepcopy(self.original), "original")
            self._add(ShortTraining("", 1.0, 1.0, 1.0, top1, seconds))

    def _least(self, settings: Sequence[BoundsCandidate], what: str) -> BoundsCandidate:
        """The first of `settings`, which ascend, that stays within the tolerance.

        Raises:
            DesignError: none does, or the budget ended.
        """
        low, high = 0, len(settings) - 1
        while low < high:
            middle = (low + high) // 2
            if self._is_good(settings[middle]):
                high = middle
            else:
                low = middle + 1
        if not self._is_good(settings[high]):
            top1 = self._top1(settings[high])
            raise DesignError(
                f"no {what} stays within the tolerance: {settings[high]} reaches {top1:.2f} % top-1 after this training, the "
                f"original {self.bounds.original.top1 if self.bounds.original else 0:.2f} %, and {self.bounds.least:.2f} % "
                "are wanted: train longer with --recipe, or raise --max-drop"
            )
        return settings[high]

    def _is_good(self, setting: BoundsCandidate) -> bool:
        return self._top1(setting) >= self.bounds.least - 1e-9

    def _top1(self, setting: BoundsCandidate) -> float:
        """Accuracy of a network after the training, which is done unless it was."""
        known = {training.design: training.top1 for training in self.bounds.trainings}
        if setting.design.id not in known:
            top1, seconds = self._trained(build(self.blueprint, setting.design), str(setting))
            self._add(ShortTraining(setting.design.id, setting.depth, setting.width, setting.macs, top1, seconds))
            return top1
        return known[setting.design.id]

    def _trained(self, module: nn.Module, what: str) -> tuple[float, float]:
        done = len(self.bounds.trainings)
        if self.budget is not None and done >= self.budget:
            raise DesignError(
                f"the budget of {self.budget} trainings ended before all bounds were found; what is finished is kept: go on "
                "with a larger --budget"
            )
        self.progress(done, max(self.expected, done + 1), what)
        return self.retrain(module, what)

    def _add(self, training: ShortTraining) -> None:
        self._found(replace(self.bounds, trainings=(*self.bounds.trainings, training)))

    def _found(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.keep(bounds)


def _bisections(settings: Sequence[BoundsCandidate]) -> int:
    """Trainings that it takes to find one of `settings`, at most."""
    return math.ceil(math.log2(len(settings))) + 1


# -- networks that are tried -------------------------------------------------------------------------------------------


def candidates_by_depth(blueprint: Blueprint) -> list[BoundsCandidate]:
    """Networks at full width for every depth that some stage can have, the shallowest first."""
    stages = _stages(blueprint)
    depths = {
        blueprint.depth_ratio(stage, blocks) for stage in stages for blocks in blueprint.depth_candidates(stage)
    } | {1.0}
    return _distinct([_setting(blueprint, depth, 1.0) for depth in sorted(depths)])


def candidates_by_width(blueprint: Blueprint) -> list[BoundsCandidate]:
    """Networks at full depth, the narrowest first."""
    widths = [step / _WIDTHS for step in range(_NARROWEST, _WIDTHS + 1)]
    return _distinct([_setting(blueprint, 1.0, width) for width in widths])


def candidates_by_macs(blueprint: Blueprint, min_depth: float, min_width: float) -> list[BoundsCandidate]:
    """Networks scaled in depth and width alike as far as these bounds allow, those with the fewest MACs first."""
    steps = [step / _DIAGONAL for step in range(1, _DIAGONAL + 1)]
    scaled = [_setting(blueprint, max(step, min_depth), max(step, min_width)) for step in steps]
    kept: list[BoundsCandidate] = []
    for setting in sorted(scaled, key=lambda setting: setting.macs):
        if not kept or (kept[-1].macs + _MACS_APART <= setting.macs <= _LARGEST):
            kept.append(setting)
    return kept


def _distinct(settings: Sequence[BoundsCandidate]) -> list[BoundsCandidate]:
    """Of networks that are equal, because widths are rounded, the first."""
    found: dict[Hashable, BoundsCandidate] = {}
    for setting in settings:
        branches = [branch for segment in setting.design.segments for branch in segment.branches]
        found.setdefault(tuple((branch.blocks, branch.channels, branch.macs) for branch in branches), setting)
    return list(found.values())


def _stages(blueprint: Blueprint) -> list[Segment]:
    """The stages that can be branched.

    Raises:
        DesignError: there are none.
    """
    stages = [stage for stage in blueprint.traced.stages if blueprint.branchable(stage)]
    if not stages:
        raise DesignError("no stage of the network can be branched, so that there is nothing to find bounds for")
    return stages


def _setting(blueprint: Blueprint, depth: float, width: float) -> BoundsCandidate:
    """Two branches in every stage that can have them, as shallow as `depth` allows and as narrow as `width`."""
    branched = _stages(blueprint)
    choices = []
    for stage in blueprint.traced.stages:
        if stage in branched:
            blocks = blueprint.depth_candidates(stage, depth)[-1]
            pair = [BranchChoice(processor, blocks, width) for processor in (0, 1)]
            choices.append(SegmentChoice(stage, blueprint.meeting(stage, pair)))
        else:
            choices.append(SegmentChoice(stage, (BranchChoice.whole(stage, 0),)))
    design = make_design(blueprint, choices)
    original = sum(segment_cost(blueprint, stage).macs for stage in branched)
    pairs = [segment for segment in design.segments if len(segment.branches) > 1]
    macs = sum(branch.macs for segment in pairs for branch in segment.branches)
    return BoundsCandidate(depth, width, design, macs / max(original, 1))
