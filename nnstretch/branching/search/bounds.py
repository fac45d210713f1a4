"""Finds lower bounds of depth, width and MACs by short trainings.

NN-Stretch guarantees capacity by hard lower bounds, because extremely shallow or narrow branches lose
accuracy. To find a network's own bounds, networks whose stages have two equal branches are trained: shallower
ones at full width, narrower ones at full depth, then ones scaled in both. Each inherits weights and is
retrained briefly. The reference is the original after the same retraining, so that the effect of the
retraining itself cancels. Accuracy is assumed to be monotonic in depth, width and MACs, so bisection finds
the smallest of each within a tolerance.
"""

from __future__ import annotations

import bisect
import copy
import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Protocol

from torch import nn

from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, SegmentChoice
from nnstretch.branching.design.design import Design
from nnstretch.branching.design.from_choices import make_design, segment_cost
from nnstretch.branching.tracing.trace import Segment
from nnstretch.branching.transform.build import build
from nnstretch.errors import DesignError
from nnstretch.support.progress import Progress, silent
from nnstretch.support.words import counted

TOLERANCE = 0.2
"""Default tolerance: points of top-1 accuracy that a branched network may lose."""

_WIDTHS = 16  # width ratios are k / 16
_NARROWEST = 2  # smallest k
_DIAGONAL = 32  # steps of scaling depth and width together
_MACS_APART = 0.05  # minimum MAC distance of candidates, over the original's MACs
_LARGEST = 1.25  # maximum MACs of branches over the original's


@dataclass(frozen=True)
class BoundsCandidate:
    """A network whose stages have two equal branches.

    Attributes:
        depth: minimum depth of every branch; stages take the nearest depth that they can have.
        width: width ratio of every branch.
        design: the network.
        macs: MACs of the branches over those of the original stages.
    """

    depth: float
    width: float
    design: Design
    macs: float

    def __str__(self) -> str:
        return f"depth {self.depth:.2f}, width {self.width:.2f}, MACs {self.macs:.2f}"


@dataclass(frozen=True)
class ShortTraining:
    """A finished short training.

    Attributes:
        design: id of the network's design; empty for the original.
        depth: depth ratio of its branches.
        width: width ratio of its branches.
        macs: MAC ratio of its branches.
        top1: accuracy in percent.
        seconds: duration.
    """

    design: str
    depth: float
    width: float
    macs: float
    top1: float
    seconds: float


@dataclass(frozen=True)
class Bounds:
    """Bounds found so far.

    Attributes:
        tolerance: points of top-1 that a branched network may lose.
        images: number of validation images that accuracy is measured on; see `margin`.
        min_depth: lower bound as in `SearchLimits`; None while unknown.
        min_width: lower bound as in `SearchLimits`; None while unknown.
        min_macs: lower bound as in `SearchLimits`; None while unknown.
        trainings: finished trainings, in order.
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
        """Standard error of the original's accuracy in points; it replaces the tolerance if it is larger."""
        if self.original is None or not self.images:
            return 0.0
        # Laplace smoothing: a perfect score must not have a standard error of zero.
        share = (self.original.top1 / 100 * self.images + 1) / (self.images + 2)
        return 100 * math.sqrt(share * (1 - share) / self.images)

    @property
    def least(self) -> float:
        """Minimum top-1, in percent, to be within the tolerance."""
        return (self.original.top1 if self.original else math.nan) - max(self.tolerance, self.margin)

    @property
    def complete(self) -> bool:
        """Whether all three bounds are known."""
        return None not in (self.min_depth, self.min_width, self.min_macs)


class Retrain(Protocol):
    """Retrains networks briefly."""

    def __call__(self, module: nn.Module, what: str, /) -> tuple[float, float]:
        """Trains `module` in place.

        Args:
            module: the network.
            what: describes it, for progress reports.

        Returns:
            Top-1 on validation images in percent, and seconds.
        """


@dataclass(eq=False)
class BoundsSearch:
    """Finds the bounds of a network.

    Attributes:
        blueprint: the network.
        original: the module that it was traced from; it is not changed.
        retrain: trains networks.
        bounds: tolerance, number of images, and finished trainings, which are not repeated.
        keep: called after every training with the bounds so far.
        budget: maximum number of trainings, finished ones included.
        progress: called as progress(done, total, what); the total is an estimate.
    """

    blueprint: Blueprint
    original: nn.Module
    retrain: Retrain
    bounds: Bounds
    keep: Callable[[Bounds], None]
    _: KW_ONLY
    budget: int | None = None
    progress: Progress = silent
    expected: int = field(default=0, init=False)

    def run(self) -> Bounds:
        """Complete bounds.

        Raises:
            DesignError: nothing can be branched, nothing is within the tolerance, or the budget is exhausted.
        """
        depths, widths = candidates_by_depth(self.blueprint), candidates_by_width(self.blueprint)
        self.bounds = replace(self.bounds, min_depth=None, min_width=None, min_macs=None)
        self.expected = 1 + _bisections(depths) + 2 * _bisections(widths)
        if self.bounds.original is None:
            top1, seconds = self._trained(copy.deepcopy(self.original), "original")
            self._add(ShortTraining("", 1.0, 1.0, 1.0, top1, seconds))
        depth = self._least(depths, "depth").depth
        self._update(replace(self.bounds, min_depth=depth))
        width = self._least(widths, "width").width
        self._update(replace(self.bounds, min_width=width))
        smallest, *larger = candidates_by_macs(self.blueprint, depth, width)
        found = self._least([smallest, *larger], "number of MACs")
        # The smallest network within the other bounds may be larger than the original.
        macs = min(found.macs, 1.0) if found is smallest else found.macs
        self._update(replace(self.bounds, min_macs=math.floor(1000 * macs) / 1000))
        self.progress(self.expected, self.expected, "done")
        return self.bounds

    def _least(self, candidates: Sequence[BoundsCandidate], what: str) -> BoundsCandidate:
        """The first of `candidates`, which ascend, that is within the tolerance, by bisection.

        Raises:
            DesignError: none is, or the budget is exhausted.
        """
        found = candidates[bisect.bisect_left(candidates, True, hi=len(candidates) - 1, key=self._is_good)]
        if not self._is_good(found):
            top1 = self._top1(found)
            raise DesignError(
                f"no {what} stays within the tolerance: {found} reaches {top1:.2f} % top-1 after this training, the "
                f"original {self.bounds.original.top1 if self.bounds.original else 0:.2f} %, and {self.bounds.least:.2f} % "
                "are wanted: train longer with --recipe, or raise --max-drop"
            )
        return found

    def _is_good(self, candidate: BoundsCandidate) -> bool:
        return self._top1(candidate) >= self.bounds.least - 1e-9

    def _top1(self, candidate: BoundsCandidate) -> float:
        """Accuracy of a network after its training, which runs unless it is finished."""
        known = {training.design: training.top1 for training in self.bounds.trainings}
        if candidate.design.id not in known:
            top1, seconds = self._trained(build(self.blueprint, candidate.design), str(candidate))
            self._add(
                ShortTraining(candidate.design.id, candidate.depth, candidate.width, candidate.macs, top1, seconds)
            )
            return top1
        return known[candidate.design.id]

    def _trained(self, module: nn.Module, what: str) -> tuple[float, float]:
        done = len(self.bounds.trainings)
        if self.budget is not None and done >= self.budget:
            raise DesignError(
                f"the budget of {counted(self.budget, 'training')} ended before all bounds were found; what is finished is "
                f"kept: go on with --budget {max(self.expected, self.budget + 1)}"
            )
        self.progress(done, max(self.expected, done + 1), what)
        return self.retrain(module, what)

    def _add(self, training: ShortTraining) -> None:
        self._update(replace(self.bounds, trainings=(*self.bounds.trainings, training)))

    def _update(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.keep(bounds)


def _bisections(candidates: Sequence[BoundsCandidate]) -> int:
    """Maximum number of trainings to find one of `candidates`."""
    return math.ceil(math.log2(len(candidates))) + 1


# -- candidates ------------------------------------------------------------------------------------------------------


def candidates_by_depth(blueprint: Blueprint) -> list[BoundsCandidate]:
    """Full-width networks for every depth that some stage can have, shallowest first."""
    stages = _stages(blueprint)
    depths = {
        blueprint.depth_ratio(stage, blocks) for stage in stages for blocks in blueprint.depth_candidates(stage)
    } | {1.0}
    return _distinct([_candidate(blueprint, depth, 1.0) for depth in sorted(depths)])


def candidates_by_width(blueprint: Blueprint) -> list[BoundsCandidate]:
    """Full-depth networks, narrowest first."""
    widths = [step / _WIDTHS for step in range(_NARROWEST, _WIDTHS + 1)]
    return _distinct([_candidate(blueprint, 1.0, width) for width in widths])


def candidates_by_macs(blueprint: Blueprint, min_depth: float, min_width: float) -> list[BoundsCandidate]:
    """Networks scaled in depth and width together within these bounds, in order of MACs."""
    steps = [step / _DIAGONAL for step in range(1, _DIAGONAL + 1)]
    scaled = [_candidate(blueprint, max(step, min_depth), max(step, min_width)) for step in steps]
    kept: list[BoundsCandidate] = []
    for candidate in sorted(scaled, key=lambda candidate: candidate.macs):
        if not kept or (kept[-1].macs + _MACS_APART <= candidate.macs <= _LARGEST):
            kept.append(candidate)
    return kept


def _distinct(candidates: Sequence[BoundsCandidate]) -> list[BoundsCandidate]:
    """Removes networks that rounding makes equal to an earlier one."""
    found: dict[Hashable, BoundsCandidate] = {}
    for candidate in candidates:
        branches = [branch for segment in candidate.design.segments for branch in segment.branches]
        found.setdefault(tuple((branch.blocks, branch.channels, branch.macs) for branch in branches), candidate)
    return list(found.values())


def _stages(blueprint: Blueprint) -> list[Segment]:
    """The stages that can be branched.

    Raises:
        DesignError: there are none.
    """
    stages = [stage for stage in blueprint.traced.stages if blueprint.branchable(stage)]
    if not stages:
        raise DesignError(
            "no stage of the network can be branched, so there are no bounds to find; give a network with branchable stages"
        )
    return stages


def _candidate(blueprint: Blueprint, depth: float, width: float) -> BoundsCandidate:
    """The network with two branches in every branchable stage, with at least the given depth and this width."""
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
