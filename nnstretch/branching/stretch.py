"""From a module to ranked branched modules: what `nnstretch.stretch` does once it knows the processors."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from nnstretch.branching.build import blueprint, build
from nnstretch.branching.design import Design
from nnstretch.branching.network import BranchedNetwork
from nnstretch.branching.options import Progress, SearchLimits
from nnstretch.branching.predictor import LatencyPredictor
from nnstretch.branching.scaling import DEFAULT_MULTIPLE
from nnstretch.branching.search import SearchReport, search_blueprint


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


def stretch(
    module: nn.Module,
    example_input: Tensor,
    predictor: LatencyPredictor,
    processors: int = 2,
    limits: SearchLimits | None = None,
    *,
    multiple: int = DEFAULT_MULTIPLE,
    designs: int = 1,
    progress: Progress | None = None,
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
        progress: called now and then with what is being done.

    Raises:
        DesignError: the network cannot be branched, or nothing is within the limits; the message says what is.
    """
    limits = limits or SearchLimits()
    limits.check()
    prepared = blueprint(module, example_input, multiple)
    found, report = search_blueprint(prepared, predictor, processors, limits, designs=designs, progress=progress)
    return [StretchResult(design, build(prepared, design), report) for design in found]


def rebuild(module: nn.Module, example_input: Tensor, design: Design) -> BranchedNetwork:
    """The branched network of a saved design with weights inherited from `module`, which the design was made for.

    Raises:
        DesignError: the network cannot be branched, or the design is for another one.
    """
    return build(blueprint(module, example_input, design.multiple), design)
