"""Branched modules with inherited weights, from a search, a saved design, or a published file."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nnstretch.branching.channels.scaling import DEFAULT_MULTIPLE
from nnstretch.branching.design.blueprint import blueprint
from nnstretch.branching.design.design import Design, Merge
from nnstretch.branching.latency.prediction import Prediction
from nnstretch.branching.latency.predictor import DesignRunner, LatencyPredictor
from nnstretch.branching.pycls.network import PublishedNetwork
from nnstretch.branching.pycls.to_design import design_of, differences, merge_of
from nnstretch.branching.search.limits import SearchLimits
from nnstretch.branching.search.report import SearchReport
from nnstretch.branching.search.search import search_blueprint
from nnstretch.branching.transform.build import build
from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.support.progress import Progress, silent
from nnstretch.zoo.weights import initialise


@dataclass(frozen=True, eq=False)
class StretchResult:
    """One branched network of a search.

    Attributes:
        design: its structure, with predictions.
        module: the network with inherited weights, in the original's training mode.
        report: of the search.
    """

    design: Design
    module: BranchedNetwork
    report: SearchReport

    @property
    def prediction(self) -> Prediction:
        """Predicted seconds of the network's parts."""
        return self.report.predictions[self.design.id]


@dataclass(frozen=True, eq=False)
class PublishedResult:
    """The branched network of a published file.

    Attributes:
        design: its structure.
        module: the network with inherited weights, in the original's training mode.
        notes: what it keeps of the original although the file specifies something else.
    """

    design: Design
    module: BranchedNetwork
    notes: tuple[str, ...]


def stretch(
    module: nn.Module,
    example_input: Tensor,
    predictor: LatencyPredictor,
    processors: int = 2,
    limits: SearchLimits | None = None,
    *,
    multiple: int = DEFAULT_MULTIPLE,
    designs: int = 1,
    pareto: bool = False,
    runner: DesignRunner | None = None,
    progress: Progress | None = None,
    merge: Merge = Merge.CONCAT,
) -> list[StretchResult]:
    """Branched networks with weights inherited from `module`, fastest first.

    Args:
        module: a network with a chain of convolution blocks; it is not changed.
        example_input: an `N,C,H,W` batch that it accepts; latencies are predicted for this shape.
        predictor: of latencies.
        processors: number of processors, at least two.
        limits: constraints; defaults if None.
        multiple: scaled layers have multiples of this many channels, unless the layer is narrower.
        designs: maximum number of networks.
        pareto: spread the designs over the front of latency and MACs instead of returning the fastest.
        runner: runs designs for measurement-guided refinement (`search`).
        progress: called as progress(done, total, what).
        merge: how branches are merged.

    Raises:
        DesignError: the network cannot be branched, or no design meets the limits; the message says what would.
    """
    limits = limits or SearchLimits()
    limits.check()
    report_progress = progress or silent
    report_progress(0, 0, "tracing the network")
    prepared = blueprint(module, example_input, multiple, merge)
    found, report = search_blueprint(
        prepared, predictor, processors, limits, designs=designs, pareto=pareto, runner=runner, progress=report_progress
    )
    results = []
    for number, design in enumerate(found):
        report_progress(number, len(found), "building networks with inherited weights")
        results.append(StretchResult(design, build(prepared, design), report))
    return results


def rebuild(module: nn.Module, example_input: Tensor, design: Design) -> BranchedNetwork:
    """The branched network of a saved design, with weights inherited from the module that it was made for.

    Raises:
        DesignError: the network cannot be branched, or the design is for another one.
    """
    return build(blueprint(module, example_input, design.multiple, design.merge), design)


def published(module: nn.Module, example_input: Tensor, network: PublishedNetwork) -> PublishedResult:
    """The branched network of a published file, with weights inherited from a module of the file's family.

    Raises:
        DesignError: the network cannot be branched, or cannot become what the file describes.
    """
    prepared = blueprint(module, example_input, merge=merge_of(network))
    design = design_of(network, prepared)
    return PublishedResult(design, build(prepared, design), tuple(differences(network, prepared)))


def reinitialise(network: BranchedNetwork, example_input: Tensor, seed: int = 0) -> None:
    """Replaces the inherited weights of a branched network by fresh ones for training from scratch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        initialise(network, example_input.shape[1], None)
