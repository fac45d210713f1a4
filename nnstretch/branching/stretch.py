"""From a module to ranked branched modules: what `nnstretch.stretch` does once it knows the processors."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nnstretch.branching.channels.scaling import DEFAULT_MULTIPLE
from nnstretch.branching.design.blueprint import blueprint
from nnstretch.branching.design.design import Design, Merge
from nnstretch.branching.latency.prediction import Prediction
from nnstretch.branching.latency.predictor import DesignRunner, LatencyPredictor
from nnstretch.branching.pycls.files import PublishedNetwork
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
    """One branched network.

    Attributes:
        design: its structure and what was predicted of it.
        module: the network with inherited weights, in the mode that the original was in.
        report: how the search went.
    """

    design: Design
    module: BranchedNetwork
    report: SearchReport

    @property
    def prediction(self) -> Prediction:
        """What the parts of the network are predicted to take."""
        return self.report.predictions[self.design.id]


@dataclass(frozen=True, eq=False)
class PublishedResult:
    """The branched network of a published file.

    Attributes:
        design: its structure.
        module: the network with inherited weights, in the mode that the original was in.
        notes: what it keeps of the original although the file says otherwise.
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
    """Branched networks for `processors` processors with weights inherited from `module`, the fastest first.

    Args:
        module: a network that is a chain of convolution blocks; left alone.
        example_input: a batch `N,C,H,W` that it accepts; latencies are predicted for it.
        predictor: of latencies.
        processors: number of processors, two or more.
        limits: what designs must meet; the usual limits if None.
        multiple: scaled layers have multiples of so many channels where they are wide enough.
        designs: how many networks to return at most.
        pareto: spread them over the front of latency and MACs instead of giving the fastest ones.
        runner: runs designs, so that the best one is shared out after what is seen (`search`).
        progress: called now and then with what is being done.
        merge: how branches meet.

    Raises:
        DesignError: the network cannot be branched, or nothing is within the limits; the message says what is.
    """
    limits = limits or SearchLimits()
    limits.check()
    told = progress or silent
    told(0, 0, "tracing the network")
    prepared = blueprint(module, example_input, multiple, merge)
    found, report = search_blueprint(
        prepared, predictor, processors, limits, designs=designs, pareto=pareto, runner=runner, progress=told
    )
    results = []
    for number, design in enumerate(found):
        told(number, len(found), "building networks with inherited weights")
        results.append(StretchResult(design, build(prepared, design), report))
    return results


def rebuild(module: nn.Module, example_input: Tensor, design: Design) -> BranchedNetwork:
    """The branched network of a saved design with weights inherited from `module`, which the design was made for.

    Raises:
        DesignError: the network cannot be branched, or the design is for another one.
    """
    return build(blueprint(module, example_input, design.multiple, design.merge), design)


def published(module: nn.Module, example_input: Tensor, network: PublishedNetwork) -> PublishedResult:
    """The branched network of a published file with weights inherited from `module`, whose family the file is about.

    Raises:
        DesignError: the network cannot be branched, or cannot become what the file says.
    """
    prepared = blueprint(module, example_input, merge=merge_of(network))
    design = design_of(network, prepared)
    return PublishedResult(design, build(prepared, design), tuple(differences(network, prepared)))


def reinitialise(network: BranchedNetwork, example_input: Tensor, seed: int = 0) -> None:
    """Gives a branched network weights such as a training starts from, in place of inherited ones."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        initialise(network, example_input.shape[1], None)
