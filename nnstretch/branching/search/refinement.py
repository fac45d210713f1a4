"""Measurement-guided refinement: runs designs during the search, and corrects predictions by what was measured."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from nnstretch.branching.latency.prediction import DesignRunner, MeasuredDesign
from nnstretch.branching.latency.table import LatencyTable
from nnstretch.branching.search.dynamic_programming import NetworkCandidate
from nnstretch.branching.search.network_latency import (
    branch_seconds,
    network_prediction,
    predicted_design,
    states_before,
)
from nnstretch.branching.transform.build import BuiltNetworks
from nnstretch.support.progress import Progress

_RUNS = 4  # runs of untuned designs, to balance the branches
_TUNED = 2  # runs of tuned designs
_WORTH = 0.02  # minimum predicted gain, as a share of latency, for another run
_WORTH_TUNING = 0.03  # the same for tuned designs, whose runs take longer


@dataclass(eq=False)
class GuidedRefinement:
    """Finds the fastest of several designs by running them.

    The measured time of each branch, beside the other branches and with its real inputs, replaces its
    prediction; then the work is rebalanced among the branches.

    Attributes:
        latencies: predictions; measurements correct them.
        networks: of designs, to run.
        runner: runs networks.
        propose: the best network by current knowledge, given the last one that ran; None if none is within
            the limits.
        progress: called before every run.
        can_win: whether a network with these predicted seconds may be the one to return; others are not tuned, which takes
            longest.
        measured_ms: milliseconds of the tuned designs that ran, by id.
        end: `time.monotonic()` at which no further run begins. A run does not begin, either, if the last one of its kind
            took longer than the time that is left.
        cut_short: whether a run did not begin for that reason.
    """

    latencies: LatencyTable
    networks: BuiltNetworks
    runner: DesignRunner
    propose: Callable[[NetworkCandidate], NetworkCandidate | None]
    progress: Progress
    can_win: Callable[[float], bool] = lambda _: True
    measured_ms: dict[str, float] = field(default_factory=dict)
    end: float = math.inf
    cut_short: bool = field(default=False, init=False)

    def fastest(self, network: NetworkCandidate) -> NetworkCandidate:
        """The fastest network that was run, starting with `network`.

        Untuned runs balance the work first. Tuned runs follow, because tuning accelerates some processors
        more than others. It is `network` itself if there is no time for a run.
        """
        best = self._fastest(network, _RUNS, _WORTH, tuned=False)
        if not self.can_win(self._seconds(best)):
            return best
        return self._fastest(best, _TUNED, _WORTH_TUNING, tuned=True)

    def _fastest(self, network: NetworkCandidate, most: int, worth: float, *, tuned: bool) -> NetworkCandidate:
        what = "tuning and running the best design" if tuned else "running the best design"
        seen: dict[object, tuple[float, NetworkCandidate]] = {}
        seconds = 0.0  # of the last run, with its preparation
        for number in range(most):
            if time.monotonic() + seconds >= self.end:
                self.cut_short = True
                break
            self.progress(number, most, what)
            begin = time.monotonic()
            seen[network.structure] = (self._run(network, tuned=tuned), network)
            if number + 1 == most:
                break
            following = self.propose(network)
            seconds = time.monotonic() - begin
            # Stop if no network is within the corrected limits, or if none is predicted to be much faster.
            if following is None or following.structure in seen:
                break
            if self._seconds(following) > (1 - worth) * self._seconds(network):
                break
            network = following
        self.progress(most, most, what)
        return min(seen.values(), key=lambda one: one[0])[1] if seen else network

    def _run(self, network: NetworkCandidate, *, tuned: bool) -> float:
        """Runs a network, corrects the predictions, and returns its seconds."""
        design, _ = predicted_design(self.latencies, network.choices, network.head)
        measured = self.runner(self.networks.of(design), tuned=tuned)
        if tuned:
            self.measured_ms[design.id] = 1e3 * measured.seconds
        self._correct(network, measured)
        return measured.seconds

    def _correct(self, network: NetworkCandidate, measured: MeasuredDesign) -> None:
        """Stores the ratio of measured to predicted seconds (alone) for the branches of a network."""
        latencies, head = self.latencies, network.head
        predicted = branch_seconds(latencies, network.choices)
        parts = [
            (choice.segment.blocks, [branch.processor for branch in choice.branches]) for choice in network.choices
        ]
        if head:
            states = states_before(latencies, network.choices)
            predicted.append([latencies.towers(branch, states) for branch in head])
            end = len(latencies.blueprint.traced.blocks)
            parts.append((range(end, end + 1), [branch.processor for branch in head]))
        for (blocks, processors), found, estimates in zip(parts, measured.branches, predicted, strict=True):
            if len(processors) > 1:
                for processor, seconds, estimate in zip(processors, found, estimates, strict=True):
                    if estimate:  # zero if none of its layers has a prediction
                        places = ((block, processor) for block in blocks)
                        latencies.corrections.update(dict.fromkeys(places, seconds / estimate))

    def _seconds(self, network: NetworkCandidate) -> float:
        """Predicted latency of a network, corrections included."""
        branches = branch_seconds(self.latencies, network.choices)
        return network_prediction(self.latencies, network.choices, branches, network.head).seconds
