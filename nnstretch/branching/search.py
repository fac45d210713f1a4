"""The search for designs: where branches meet, on which processors they run, and how deep and wide they are.

Every boundary between blocks may be a meeting point, so that number and places of meeting points come out of the search. The
ways to branch every stretch between two boundaries (`options`) are joined to whole networks (`joining`). Widths are first tried
in steps of an eighth; then those of the best design, and depths one block away from its own, are refined to 32nds. What
the predictor has guessed of the best designs is measured, and the search repeated with what was found.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor, nn

from nnstretch.branching.blueprint import Blueprint, BranchChoice, SegmentChoice, blueprint
from nnstretch.branching.build import build
from nnstretch.branching.design import Design, Merge
from nnstretch.branching.designing import make_design
from nnstretch.branching.joining import Found, Joining, State, branch_seconds, confirm, network_prediction
from nnstretch.branching.latencies import Latencies
from nnstretch.branching.limits import Family, SearchLimits, family_of
from nnstretch.branching.noting import not_branched
from nnstretch.branching.options import STEPS, Census, Option, branch_choices, groups_of, segment_options
from nnstretch.branching.prediction import BlockCost, FrontPoint, Prediction
from nnstretch.branching.predictor import LatencyPredictor, Measured, Trial
from nnstretch.branching.progress import Progress, silent
from nnstretch.branching.scaling import DEFAULT_MULTIPLE
from nnstretch.branching.tracing import Segment
from nnstretch.errors import DesignError

_COARSE = 8  # width ratios are multiples of one over this
_FINE = 32
_REACH = 4  # steps to either side
_CONFIRMATIONS = 3  # times that what was guessed of the best designs is measured and the search repeated
_TRIALS = 4  # runs of designs as predicted, to share out the work
_TUNED = 2  # runs of tuned designs
_WORTH = 0.01  # of its time, that a design must be predicted to save for another run
_WORTH_TUNING = 0.03  # the same where routines are tuned for it, which takes longer
_BOUNDARIES = 24  # meeting points are looked for at so many places at most


@dataclass(frozen=True)
class Pruning:
    """How many whole designs were left after a step; the counts are so large that logarithms to base 10 are given."""

    step: str
    designs_log10: float


@dataclass(frozen=True)
class SearchReport:
    """How a search went.

    Attributes:
        family: of the network, whose usual bounds hold where no others were given.
        limits: that held.
        cut_points: places between blocks where branches could meet.
        boundaries: of these, those that were considered: numbers of the blocks that follow.
        pruning: designs that were left after each step, on the coarse grid.
        joined: transitions between segments that were evaluated.
        predicted_workloads: different layers whose latency was asked for, counted per processor.
        original_ms: the original network's predicted latency on each processor.
        measured_ms: latency of the designs that were run, by id.
        notes: for stretches that cannot be branched, why.
        blocks: of the network as it was.
        head_ms: of what follows the last block, on each processor.
        front: the networks than which none is as fast and has as many MACs, the fastest first, as predicted in the search,
            which interpolates between layers, before any design was run.
        predictions: what the parts of each returned design take, by the design's id.
        unpredicted: operators that none of the processors has a routine for; they count as nothing.
    """

    family: Family
    limits: SearchLimits
    cut_points: int
    boundaries: tuple[int, ...]
    pruning: tuple[Pruning, ...]
    joined: int
    predicted_workloads: int
    original_ms: tuple[float, ...]
    measured_ms: Mapping[str, float]
    notes: tuple[str, ...]
    blocks: tuple[BlockCost, ...] = ()
    head_ms: tuple[float, ...] = ()
    front: tuple[FrontPoint, ...] = ()
    predictions: Mapping[str, Prediction] = field(default_factory=dict)
    unpredicted: tuple[str, ...] = ()


def search(
    module: nn.Module,
    example_input: Tensor,
    predictor: LatencyPredictor,
    processors: int = 2,
    limits: SearchLimits | None = None,
    *,
    multiple: int = DEFAULT_MULTIPLE,
    designs: int = 5,
    pareto: bool = False,
    trial: Trial | None = None,
    progress: Progress | None = None,
    merge: Merge = Merge.CONCAT,
) -> tuple[list[Design], SearchReport]:
    """The designs that are predicted to be fastest, the fastest first, and how they were found.

    Args:
        module: a network that can be branched; left alone.
        example_input: a batch that it accepts; latencies are predicted for it.
        predictor: of latencies.
        processors: number of processors; a segment has branches on two of them or more.
        limits: what designs must meet; the usual limits if None.
        multiple: scaled layers have multiples of so many channels where they are wide enough.
        designs: how many to return at most.
        pareto: spread them over the front of latency and MACs instead of giving the fastest ones.
        trial: runs designs: the work of the best one is shared out anew after what is seen then, and the fastest of those that
            were run comes first. Neither with `pareto` nor with a target.
        progress: called now and then.
        merge: how branches meet.

    Raises:
        DesignError: the network cannot be branched, or nothing is within the limits; the message says what is.
    """
    limits = limits or SearchLimits()
    limits.check()
    prepared = blueprint(module, example_input, multiple, merge)
    return search_blueprint(
        prepared, predictor, processors, limits, designs=designs, pareto=pareto, trial=trial, progress=progress
    )


def search_blueprint(
    blueprint: Blueprint,
    predictor: LatencyPredictor,
    processors: int = 2,
    limits: SearchLimits | None = None,
    *,
    designs: int = 5,
    pareto: bool = False,
    trial: Trial | None = None,
    progress: Progress | None = None,
) -> tuple[list[Design], SearchReport]:
    """As `search`, for a network that is traced already."""
    limits = limits or SearchLimits()
    limits.check()
    if processors < 2 or designs < 1:
        raise DesignError(
            f"{processors} processors and {designs} designs were asked for; give 2 processors or more and 1 design or more"
        )
    latencies = Latencies(blueprint, predictor, processors)
    family = family_of(blueprint.traced)
    return _Search(latencies, family, limits.for_family(family), progress or silent, trial).run(designs, pareto=pareto)


Choices = Mapping[Segment, Sequence[Sequence[BranchChoice]]]
"""For every segment and processor the branches to consider."""


@dataclass(eq=False)
class _Search:
    latencies: Latencies
    family: Family
    limits: SearchLimits
    progress: Progress
    trial: Trial | None = None
    joined: int = field(default=0, init=False)
    notes: list[str] = field(default_factory=list, init=False)
    front: list[Found] = field(default_factory=list, init=False)
    measured_ms: dict[str, float] = field(default_factory=dict, init=False)

    def run(self, designs: int, *, pareto: bool) -> tuple[list[Design], SearchReport]:
        self.notes = not_branched(self.latencies.blueprint)
        self._compare_processors()
        boundaries = self._boundaries()
        choices = self._choices(boundaries)
        censuses = self._censuses(choices)
        coarse = self._coarse(choices, designs, pareto=pareto)
        if not coarse:
            raise DesignError(self._why_none(censuses))
        found = self._refined(coarse, designs, pareto=pareto)
        if self.trial is not None and self._are_run(pareto=pareto):
            found = self._improved(found, choices, self.trial)
        made = self._designs(found)
        made.sort(key=lambda one: self.measured_ms.get(one[0].id, math.inf))
        report = SearchReport(
            self.family,
            self.limits,
            len(self.latencies.blueprint.traced.blocks) - 1,
            tuple(boundaries[1:-1]),
            self._pruning(boundaries, censuses),
            self.joined,
            len(self.latencies.workloads),
            tuple(1e3 * seconds for seconds in self._original_seconds()),
            self.measured_ms,
            tuple(self.notes),
            self._blocks(),
            tuple(1e3 * seconds for seconds in self._head_seconds()),
            tuple(FrontPoint(1e3 * found.seconds, found.macs) for found in self.front),
            {design.id: prediction for design, prediction in made},
            tuple(sorted(self.latencies.unpredicted)),
        )
        return [design for design, _ in made], report

    def _tell(self, what: str, done: int, total: int) -> None:
        """Reports progress, with the number of layers whose latency was asked for so far."""
        self.progress(f"{what}, {len(self.latencies.workloads)} layers so far", done, total)

    def _confirm(self, found: Sequence[Found]) -> bool:
        """Measures what was guessed of networks; whether that changed anything."""
        changed = [confirm(self.latencies, network.choices) for network in found]
        if any(changed):
            self.latencies.forget()
        return any(changed)

    def _are_run(self, *, pareto: bool) -> bool:
        """Whether the best designs are run, so that nothing of them needs to be measured before."""
        return self.trial is not None and not pareto and self.limits.target_ms is None

    def _confirm_unless_run(self, found: Sequence[Found], *, pareto: bool) -> bool:
        return not self._are_run(pareto=pareto) and self._confirm(found)

    # -- what is considered ---------------------------------------------------------------------------------------

    def _compare_processors(self) -> None:
        """Asks how much the processors slow each other down, which may have to be measured first."""
        for group in groups_of(self.latencies.processors):
            self.progress(f"comparing {len(group)} processors side by side with each alone", 0, 0)
            for processor in group:
                self.latencies.predictor.slowdown(processor, frozenset(group) - {processor})

    def _boundaries(self) -> list[int]:
        """Block numbers before which branches may meet: all, or of very many those that divide the work most evenly."""
        traced = self.latencies.blueprint.traced
        count = len(traced.blocks)
        borders = list(range(count + 1))
        stages = {stage.first for stage in traced.stages} | traced.tap_borders
        cost = []
        for i in range(count):
            self._tell("predicting the blocks as they are", i, count)
            cost.append(min(self.latencies.original(Segment(i, i + 1))))
        total = list(itertools.accumulate(cost, initial=0.0))
        while len(borders) > _BOUNDARIES + 1:
            inner = [b for b in borders[1:-1] if b not in stages] or borders[1:-1]
            place = {b: i for i, b in enumerate(borders)}
            # The one whose removal makes the smallest stretch goes; ends of stages stay as long as others are left.
            worst = min(inner, key=lambda b: total[borders[place[b] + 1]] - total[borders[place[b] - 1]])
            borders.remove(worst)
        return borders

    def _choices(self, boundaries: Sequence[int]) -> Choices:
        latencies, limits = self.latencies, self.limits
        assert limits.min_width is not None
        assert limits.min_depth is not None
        grid = [i / _COARSE for i in range(1, _COARSE + 1) if i / _COARSE >= limits.min_width]
        widths = sorted({*grid, limits.min_width})
        choices = {}
        stretches = list(itertools.starmap(Segment, itertools.combinations(boundaries, 2)))
        for number, segment in enumerate(stretches):
            self.progress("listing depths and widths", number, len(stretches))
            if not self._may_be_branched(segment):
                continue
            choices[segment] = [
                branch_choices(latencies, segment, processor, widths, limits.min_depth)
                for processor in range(latencies.processors)
            ]
        return choices

    def _may_be_branched(self, segment: Segment) -> bool:
        """Whether its channels can be shared out, it is not too long, and something of it can be predicted."""
        traced, alone = self.latencies.blueprint.traced, segment.stop - segment.first == 1
        if not any(block.heavy for block in traced.blocks_of(segment)) or not min(self.latencies.original(segment)):
            return False
        whole = self.latencies.original_macs(Segment(0, len(traced.blocks)))
        if not alone and self.latencies.original_macs(segment) > self.limits.max_segment * whole:
            return False
        return self.latencies.blueprint.branchable(segment)

    def _censuses(self, choices: Choices) -> dict[Segment, Census]:
        """Ways to branch every segment if it reads what it reads in the original network."""
        censuses = {}
        for number, (segment, branches) in enumerate(choices.items()):
            self._tell("predicting branches", number, len(choices))
            censuses[segment] = Census()
            channels = self.latencies.blueprint.channels_before(segment.first)
            segment_options(
                self.latencies, segment, branches, self.limits, channels, exact=False, census=censuses[segment]
            )
        self._tell("predicting branches", len(choices), len(choices))
        return censuses

    def _around(self, found: Found) -> Choices:
        """For the branched segments of a network the branches next to its own."""
        choices = {}
        for choice in found.choices:
            if len(choice.branches) > 1:
                own = {branch.processor: branch for branch in choice.branches}
                choices[choice.segment] = [
                    self._neighbours(choice.segment, own[p]) if p in own else []
                    for p in range(self.latencies.processors)
                ]
        return choices

    def _neighbours(self, segment: Segment, choice: BranchChoice) -> list[BranchChoice]:
        assert self.limits.min_width is not None
        assert self.limits.min_depth is not None
        widths = [choice.width + step / _FINE for step in range(-_REACH, _REACH + 1)]
        allowed = [width for width in widths if self.limits.min_width <= width <= 1.0]
        options = branch_choices(self.latencies, segment, choice.processor, allowed, self.limits.min_depth)
        return [option for option in options if abs(len(option.blocks) - len(choice.blocks)) <= 1]

    # -- whole networks -------------------------------------------------------------------------------------------

    def _coarse(self, choices: Choices, designs: int, *, pareto: bool) -> list[Found]:
        """The front on the coarse grid, nothing of its best networks guessed; empty if there is nothing within the limits."""
        front = self._join(choices, "joining segments")
        for _ in range(_CONFIRMATIONS):
            # What looks best may do so because it was guessed too low.
            if not front or not self._confirm_unless_run(self._centres(front, designs, pareto=pareto), pareto=pareto):
                break
            front = self._join(choices, "joining segments")
        return front

    def _refined(self, coarse: Sequence[Found], designs: int, *, pareto: bool) -> list[Found]:
        """The networks to return, with those around the best ones considered."""
        centres = self._centres(coarse, designs, pareto=pareto)
        self.front = _front([*coarse, *self._near(centres)])
        wanted = self._reached(self.front, designs, pareto=pareto)
        for _ in range(_CONFIRMATIONS):
            if not self._confirm_unless_run(wanted, pareto=pareto):
                break
            self.front = _front([*coarse, *self._near(centres)])
            wanted = self._reached(self.front, designs, pareto=pareto)
        return wanted

    def _improved(self, found: Sequence[Found], choices: Choices, trial: Trial) -> list[Found]:
        """The networks, but first the fastest one of some that were run.

        They are first run as predicted, to share out the work, and then tuned, which speeds up one processor more than another.
        """
        best = self._tried(found[0], choices, trial, _TRIALS, tuned=False)
        best = self._tried(best, choices, trial, _TUNED, tuned=True)
        return [best, *(other for other in found if other.choices != best.choices)][: len(found)]

    def _tried(self, network: Found, choices: Choices, trial: Trial, most: int, *, tuned: bool) -> Found:
        """The fastest of some networks that are run, each of them made from what was seen of the one before.

        What every branch takes in a run, beside the others and with its inputs in their caches, takes the place of what was
        predicted, and the work is shared out anew: near the network that was run, and near the best on the coarse grid.
        """
        what = "tuning and running the best design" if tuned else "running the best design"
        tried: dict[tuple[SegmentChoice, ...], tuple[float, Found]] = {}
        for number in range(most):
            self.progress(what, number, most)
            ((design, _),) = self._designs([network])
            measured = trial(build(self.latencies.blueprint, design), tuned=tuned)
            tried[network.choices] = (measured.seconds, network)
            if tuned:
                self.measured_ms[design.id] = 1e3 * measured.seconds
            self._correct(network, measured)
            coarse = self._centres(self._join(choices, "joining segments anew"), 1, pareto=False)
            nearby = self._wanted(self._near([network, *coarse]), 1, pareto=False)
            # By what was measured, none may be within the limits, or none much faster.
            if not nearby or nearby[0].choices in tried:
                break
            if self._seconds(nearby[0]) > (1 - (_WORTH_TUNING if tuned else _WORTH)) * self._seconds(network):
                break
            network = nearby[0]
        self.progress(what, most, most)
        return min(tried.values(), key=lambda one: one[0])[1]

    def _seconds(self, network: Found) -> float:
        """What a network takes by all that is known now."""
        branches = branch_seconds(self.latencies, network.choices)
        return network_prediction(self.latencies, network.choices, branches).seconds

    def _correct(self, network: Found, measured: Measured) -> None:
        """Notes how much longer than predicted alone the branches of a network took."""
        predicted = branch_seconds(self.latencies, network.choices)
        for choice, found, guesses in zip(network.choices, measured.branches, predicted, strict=True):
            if len(choice.branches) > 1:
                for branch, seconds, guess in zip(choice.branches, found, guesses, strict=True):
                    if guess:  # nothing if none of its layers is predicted
                        places = ((block, branch.processor) for block in choice.segment.blocks)
                        self.latencies.corrections.update(dict.fromkeys(places, seconds / guess))

    def _near(self, centres: Sequence[Found]) -> list[Found]:
        """Networks with the same segments as some others, and widths and depths next to theirs."""
        near = []
        for number, centre in enumerate(centres, 1):
            what = (
                "refining widths" if len(centres) == 1 else f"refining widths around {number} of {len(centres)} designs"
            )
            near += self._join(self._around(centre), what)
        return near

    def _centres(self, front: Sequence[Found], designs: int, *, pareto: bool) -> list[Found]:
        """The networks around which others are looked for."""
        wanted = self._wanted(front, designs, pareto=pareto) or _front(front)
        return wanted if pareto else wanted[:1]

    def _join(self, choices: Choices, what: str) -> list[Found]:
        by_first: dict[int, list[Segment]] = {}
        for segment in choices:
            by_first.setdefault(segment.first, []).append(segment)
        known: dict[tuple[Segment, int, bool], list[Option]] = {}

        def options(segment: Segment, state: State) -> list[Option]:
            key = (segment, state.channels, state.exact)
            if key not in known:
                known[key] = segment_options(
                    self.latencies, segment, choices[segment], self.limits, state.channels, exact=state.exact
                )
            return known[key]

        joining = Joining(self.latencies, by_first, options)
        found = joining.run(lambda done, total: self._tell(what, done, total))
        self.joined += joining.joined
        return found

    def _wanted(self, found: Sequence[Found], designs: int, *, pareto: bool) -> list[Found]:
        """Those to return: the fastest, those with the most MACs within the target, or some of all amounts of MACs.

        Nothing if no network is within the target.
        """
        front = _front(found)
        target = self.limits.target_ms
        if target is not None:
            return [f for f in front if f.seconds * 1e3 <= target][::-1][:designs]
        if pareto:
            places = [round(i * (len(front) - 1) / max(designs - 1, 1)) for i in range(designs)]
            return [front[place] for place in dict.fromkeys(places)]
        return front[:designs]

    def _reached(self, found: Sequence[Found], designs: int, *, pareto: bool) -> list[Found]:
        """As `_wanted`, but refuses a target that no network is within."""
        wanted = self._wanted(found, designs, pareto=pareto)
        if not wanted:
            raise DesignError(
                f"no design within the limits is predicted to take at most {self.limits.target_ms:g} ms; the fastest takes "
                f"{1e3 * _front(found)[0].seconds:.3f} ms: raise the target, or lower min_macs, min_depth or min_width"
            )
        return wanted

    def _designs(self, found: Sequence[Found]) -> list[tuple[Design, Prediction]]:
        """The designs of networks, every layer of them predicted without interpolation; the fastest first."""
        made: dict[str, tuple[Design, Prediction]] = {}
        for number, network in enumerate(found):
            self._tell("predicting the chosen designs", number, len(found))
            branches = branch_seconds(self.latencies, network.choices)
            prediction = network_prediction(self.latencies, network.choices, branches)
            branch_ms = [[1e3 * s for s in some] for some in branches]
            design = make_design(self.latencies.blueprint, network.choices, branch_ms, prediction.seconds * 1e3)
            made.setdefault(design.id, (design, prediction))
        self._tell("predicting the chosen designs", len(found), len(found))
        by_macs = self.limits.target_ms is not None

        def rank(one: tuple[Design, Prediction]) -> tuple[float, float, int]:
            design, prediction = one
            return -design.macs if by_macs else 0, prediction.seconds, -design.macs

        return sorted(made.values(), key=rank)

    def _original_seconds(self) -> list[float]:
        whole = self.latencies.original(Segment(0, len(self.latencies.blueprint.traced.blocks)))
        return [seconds + head for seconds, head in zip(whole, self._head_seconds(), strict=True)]

    def _head_seconds(self) -> list[float]:
        blueprint = self.latencies.blueprint
        channels = blueprint.channels_before(len(blueprint.traced.blocks))
        return [self.latencies.head(channels, p, exact=True) for p in range(self.latencies.processors)]

    def _blocks(self) -> tuple[BlockCost, ...]:
        """The network's blocks as they were."""
        latencies, blocks = self.latencies, []
        for number, block in enumerate(latencies.blueprint.traced.blocks):
            alone = Segment(number, number + 1)
            ms = tuple(1e3 * seconds for seconds in latencies.original(alone))
            branchable = latencies.blueprint.branchable(alone)
            blocks.append(BlockCost(block.name, latencies.original_macs(alone), ms, branchable))
        return tuple(blocks)

    # -- what is told ---------------------------------------------------------------------------------------------

    def _pruning(self, boundaries: Sequence[int], censuses: Mapping[Segment, Census]) -> tuple[Pruning, ...]:
        """Designs made of the ways that were left after each step; what lies between two may be left whole."""
        pruning = []
        for number, step in enumerate(STEPS):
            ways = dict.fromkeys(boundaries, 0.0)
            ways[0] = 1.0
            for first, stop in itertools.pairwise(boundaries):
                ways[stop] += ways[first] * self.latencies.processors
                for segment, census in censuses.items():
                    if segment.stop == stop:
                        ways[stop] += ways[segment.first] * census.within[number]
            pruning.append(Pruning(step, math.log10(ways[boundaries[-1]])))
        return tuple(pruning)

    def _why_none(self, censuses: Mapping[Segment, Census]) -> str:
        if not censuses:
            listed = "; ".join(self.notes[:3]) or "it has no block with a convolution"
            return f"no stretch of the network can be branched: {listed}"
        latencies, limits = self.latencies, self.limits
        longest = max(censuses, key=lambda segment: min(latencies.original(segment)))
        name, census = latencies.blueprint.traced.name_of(longest), censuses[longest]
        if not census.within[1]:
            return (
                f"no stretch can be branched: for {name} some processor has no branch that takes at most beta = "
                f"{limits.beta:g} of what it takes on the fastest; the least that can be reached is {census.best_beta:.2f}: "
                "raise beta, or lower min_width or min_depth"
            )
        if not census.within[2]:
            return (
                f"no stretch can be branched: behind {name} no meeting point takes at most alpha = {limits.alpha:g} of its "
                f"latency; the least that can be reached is {census.best_alpha:.3f}: raise alpha"
            )
        return (
            f"no stretch can be branched: for {name} no branches within beta = {limits.beta:g} have min_macs = "
            f"{limits.min_macs:g} of its MACs; the most that can be reached is {census.best_macs:.2f}: raise beta, or lower "
            "min_macs"
        )


def _front(found: Sequence[Found]) -> list[Found]:
    """Those than which none is as fast and has as many MACs, the fastest first."""
    front: list[Found] = []
    for network in sorted(found, key=lambda f: (f.seconds, -f.macs)):
        if not front or network.macs > front[-1].macs:
            front.append(network)
    return front
