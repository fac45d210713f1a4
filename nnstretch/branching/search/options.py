"""What a search for designs looks for, and what it may run."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

from nnstretch.branching.latency.prediction import DesignRunner, PlacedPredictor, PlanRunner, Pool
from nnstretch.branching.search.limits import SearchLimits
from nnstretch.support.progress import Progress, silent


@dataclass(frozen=True)
class SearchOptions:
    """What a search looks for.

    Attributes:
        processors: number of processors, at least two; a branched segment uses two or more.
        limits: constraints.
        designs: maximum number of designs.
        pareto: spread the designs over the front of latency and MACs instead of returning the fastest.
        runner: runs designs for measurement-guided refinement, so that their layers need no measurement before; the
            fastest design that ran comes first. Ignored with `pareto` and with a latency target.
        plan_runner: runs the network without branches, where predictions do not tell whether it is ahead of the designs that
            ran, or which of its plans is; ignored without `runner`, and with `even_if_slower`.
        kept: file for what the runs find (`refinement_file`): if it is there, no design runs; None: nothing is kept.
        fresh: run designs although the file is there, and replace it.
        time_limit: seconds after which the search runs no further designs; predictions are always completed.
        best_effort: if no design is within alpha and beta, search without these two limits.
        even_if_slower: return branched designs only, even if the network without branches is predicted to be faster.
        placed_seconds: predicts the network without branches as the scheduler runs it; None: such plans are not compared.
            Ignored with `even_if_slower`.
        pool: the cores of this machine's CPU that at least two processors compute on, as one processor; such a plan of the
            network without branches is compared, too, and is not returned with `even_if_slower`.
        splits: the layers of segments without branches may be split over the processors, as the scheduler does.
        progress: called as progress(done, total, what).
    """

    processors: int = 2
    limits: SearchLimits = field(default_factory=SearchLimits)
    designs: int = 5
    pareto: bool = False
    runner: DesignRunner | None = None
    plan_runner: PlanRunner | None = None
    kept: Path | None = None
    fresh: bool = False
    time_limit: float = math.inf
    best_effort: bool = False
    even_if_slower: bool = False
    placed_seconds: PlacedPredictor | None = None
    pool: Pool | None = None
    splits: bool = True
    progress: Progress = silent
