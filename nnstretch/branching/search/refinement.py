"""Designs that are run while they are searched for, each made from what was seen of the one before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from nnstretch.branching.design.blueprint import SegmentChoice
from nnstretch.branching.latency.predictor import DesignRunner, MeasuredDesign
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.dynamic_programming import (
    NetworkCandidate,
    branch_seconds,
    network_prediction,
    predicted_design,
)
from nnstretch.branching.transform.build import build
from nnstretch.support.progress import Progress

_RUNS = 4  # of designs as predicted, to share out the work
_TUNED = 2  # runs of tuned designs
_WORTH = 0.01  # of its time, that a design must be predicted to save for another run
_WORTH_TUNING = 0.03  # the same where routines are tuned for it, which takes longer


@dataclass(eq=False)
class GuidedRefinement:
    """Finds the fastest of some designs by running them.

    What every branch takes in a run, beside the others and with its inputs in their caches, takes the place of what was
    predicted, and the work is shared out anew.

    Attributes:
        latencies: predictions; they are corrected by what is seen.
        runner: runs networks.
        anew: the best network by what is known now, given the one that was run last; None if none is within the limits.
        progress: called before every run.
        measured_ms: latency of the tuned designs that were run, by id.
    """

    latencies: LatencyTable
    runner: DesignRunner
    propose: Callable[[NetworkCandidate], NetworkCandidate | None]
    progress: Progress
    measured_ms: dict[str, float] = field(default_factory=dict)

    def fastest(self, network: NetworkCandidate) -> NetworkCandidate:
        """The fastest network that was run, `network` first.

        They are first run as predicted, to share out the work, and then tuned, which speeds up one processor more than another.
        """
        best = self._fastest(network, _RUNS, _WORTH, tuned=False)
        return self._fastest(best, _TUNED, _WORTH_TUNING, tuned=True)

    def _fastest(self, network: NetworkCandidate, most: int, worth: float, *, tuned: bool) -> NetworkCandidate:
        what = "tuning and running the best design" if tuned else "running the best design"
        seen: dict[tuple[SegmentChoice, ...], tuple[float, NetworkCandidate]] = {}
        for number in range(most):
            self.progress(number, most, what)
            seen[network.choices] = (self._run(network, tuned=tuned), network)
            following = self.propose(network)
            # By what was measured, none may be within the limits, or none much faster.
            if following is None or following.choices in seen:
                break
            if self._seconds(following) > (1 - worth) * self._seconds(network):
                break
            network = following
        self.progress(most, most, what)
        return min(seen.values(), key=lambda one: one[0])[1]

    def _run(self, network: NetworkCandidate, *, tuned: bool) -> float:
        """Runs a network and notes what was seen; the seconds that it took."""
        design, _ = predicted_design(self.latencies, network.choices)
        measured = self.runner(build(self.latencies.blueprint, design), tuned=tuned)
        if tuned:
            self.measured_ms[design.id] = 1e3 * measured.seconds
        self._correct(network, measured)
        return measured.seconds

    def _correct(self, network: NetworkCandidate, measured: MeasuredDesign) -> None:
        """Notes how much longer than predicted alone the branches of a network took."""
        predicted = branch_seconds(self.latencies, network.choices)
        for choice, found, guesses in zip(network.choices, measured.branches, predicted, strict=True):
            if len(choice.branches) > 1:
                for branch, seconds, guess in zip(choice.branches, found, guesses, strict=True):
                    if guess:  # nothing if none of its layers is predicted
                        places = ((block, branch.processor) for block in choice.segment.blocks)
                        self.latencies.corrections.update(dict.fromkeys(places, seconds / guess))

    def _seconds(self, network: NetworkCandidate) -> float:
        """What a network takes by all that is known now."""
        branches = branch_seconds(self.latencies, network.choices)
        return network_prediction(self.latencies, network.choices, branches).seconds
