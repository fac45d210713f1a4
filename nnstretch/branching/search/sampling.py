"""Random designs, for checks of predictions and builds on designs that a search would not choose."""

from __future__ import annotations

from random import Random

from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, SegmentChoice
from nnstretch.branching.design.design import Design
from nnstretch.branching.design.from_choices import make_design, segment_cost
from nnstretch.branching.search.candidates import processor_groups
from nnstretch.branching.search.limits import SearchLimits, family_of
from nnstretch.branching.tracing.trace import Segment
from nnstretch.errors import DesignError

_WIDTHS = 32  # width ratios are k / 32
_LONGEST = 6  # maximum number of blocks in a segment
_WHOLE = 0.15  # probability that a segment is not branched
_MOST_MACS = 1.25  # maximum MACs of branches, over the original segment's
_TRIES = 50


def random_design(blueprint: Blueprint, generator: Random, limits: SearchLimits, processors: int = 2) -> Design:
    """A design with random segments, processors, depths and widths.

    Args:
        blueprint: the network.
        generator: of random numbers; equal states give equal designs.
        limits: its bounds of depth, width, MACs and segments apply; latencies are ignored.
        processors: number of processors, at least two.

    Raises:
        DesignError: no branched design within the limits was found.
    """
    sampler = _Sampler(blueprint, generator, limits.for_family(family_of(blueprint.traced)), processors)
    for _ in range(_TRIES):
        choices = sampler.network()
        if any(len(choice.branches) > 1 for choice in choices):
            return make_design(blueprint, choices)
    raise DesignError(
        f"{_TRIES} random designs have no branch; lower min_macs, min_depth or min_width, or raise max_segment"
    )


class _Sampler:
    def __init__(self, blueprint: Blueprint, generator: Random, limits: SearchLimits, processors: int) -> None:
        self.blueprint, self.generator, self.limits = blueprint, generator, limits
        self.groups = list(processor_groups(processors))
        self.processors = processors
        count = len(blueprint.traced.blocks)
        self.macs = [segment_cost(blueprint, Segment(i, i + 1)).macs for i in range(count)]

    def network(self) -> list[SegmentChoice]:
        """Segments that cover the network."""
        choices: list[SegmentChoice] = []
        first, count = 0, len(self.macs)
        while first < count:
            stop = self.generator.randint(first + 1, min(first + _LONGEST, count))
            segment = Segment(first, stop)
            branches = self.branches(segment) if self.generator.random() >= _WHOLE else None
            if branches is None:
                segment = Segment(first, first + 1)
                branches = (BranchChoice(self.generator.randrange(self.processors), (first,), 1.0),)
            choices.append(SegmentChoice(segment, branches))
            first = segment.stop
        return choices

    def branches(self, segment: Segment) -> tuple[BranchChoice, ...] | None:
        """Branches of a segment; None if it cannot be branched, or no attempt was within the limits."""
        if not self.blueprint.branchable(segment) or not self.is_short(segment):
            return None
        assert self.limits.min_depth is not None
        depths = self.blueprint.depth_candidates(segment, self.limits.min_depth)
        channels, original = self.blueprint.channels_before(segment.first), self.original(segment)
        for _ in range(_TRIES if depths else 0):
            group = self.generator.choice(self.groups)
            drawn = [BranchChoice(p, self.generator.choice(depths), self.width()) for p in group]
            met = self.blueprint.meeting(segment, drawn)
            macs = sum(self.blueprint.cost(segment, one, channels, exact=False).macs for one in met)
            if self.limits.min_macs * original <= macs <= max(_MOST_MACS, self.limits.min_macs) * original:
                return met
        return None

    def is_short(self, segment: Segment) -> bool:
        """Whether the segment's MACs are within `max_segment`."""
        alone = segment.stop - segment.first == 1
        return alone or self.original(segment) <= self.limits.max_segment * sum(self.macs)

    def original(self, segment: Segment) -> int:
        """MACs of the original segment."""
        return sum(self.macs[segment.first : segment.stop])

    def width(self) -> float:
        """A width ratio within the limits."""
        assert self.limits.min_width is not None
        return max(self.generator.randint(1, _WIDTHS) / _WIDTHS, self.limits.min_width)
