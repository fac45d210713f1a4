"""Designs of the accuracy study: one from the search, and pairs of branches of equal MACs for the ablation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from nnstretch.branching.design.blueprint import Blueprint, BranchChoice, SegmentChoice, blueprint
from nnstretch.branching.design.design import Design
from nnstretch.branching.design.from_choices import make_design
from nnstretch.branching.search.options import SearchOptions
from nnstretch.branching.search.search import search
from nnstretch.devices.simulated.profile import COMPUTE_KINDS, PairProfile, ProcessorProfile, SocProfile, Throughput
from nnstretch.errors import DesignError
from nnstretch.scheduler.simulation.costs import SimulatedPredictor
from nnstretch.support.progress import Progress

MULTIPLE = 4
"""Scaled layers have multiples of this many channels, times the factor of the widths: the networks are narrow."""
_PROCESSORS = "one", "other"
_SIZE = 32  # side of images for which networks of width 1 have a hundredth of the published MACs
_WIDTHS = 256  # width ratios of the ablation are k / 256
_TOLERANCE = 0.02  # maximum relative deviation of MACs that count as equal


def _equal_processors(size: int, width: int) -> SocProfile:
    """Two equal processors, on which a network of a hundredth of the published MACs takes as long as those on a phone.

    So designs are the same on every machine, and launches and synchronisation have their usual share of the time. Larger
    images and wider networks meet processors and memory that are faster by as much as there is more to do.

    Args:
        size: side of the images.
        width: factor of the network's widths.
    """
    bandwidth = width * (size / _SIZE) ** 2
    rate = Throughput(gmacs_per_s=((1.0, width * bandwidth),))
    processor = ProcessorProfile(2.0, dict.fromkeys(COMPUTE_KINDS, rate), {"any": bandwidth})
    return SocProfile(
        dict.fromkeys(_PROCESSORS, processor),
        (PairProfile(_PROCESSORS, sync_us=50.0, gb_per_s=bandwidth),),
        element_bytes=1,
        channel_multiple=width * MULTIPLE,
    )


def searched_design(module: nn.Module, image: Tensor, progress: Progress, width: int = 1) -> Design:
    """The branched design that the search predicts to be the fastest, with its default limits.

    Args:
        module: a network of the study.
        image: an input.
        progress: of the search.
        width: factor of the network's widths.

    Raises:
        DesignError: the network cannot be branched.
    """
    predictor = SimulatedPredictor(_equal_processors(image.shape[-1], width), _PROCESSORS)
    options = SearchOptions(len(_PROCESSORS), designs=1, even_if_slower=True, progress=progress)
    found, _ = search(blueprint(module, image, width * MULTIPLE), predictor, options)
    return found[0]


@dataclass(frozen=True)
class BranchShape:
    """The least depth of a branch and its width, both over those of the original stage."""

    depth: float
    width: float


Shapes = Callable[[float], tuple[BranchShape, BranchShape]]
"""Gives the shapes of two branches for the width that is chosen so that their MACs are those wanted."""

ABLATION: Mapping[str, Mapping[str, Shapes]] = {
    "moderate": {
        "depth only": lambda _: (BranchShape(0.5, 1.0), BranchShape(0.3, 1.0)),
        "width only": lambda width: (BranchShape(1.0, width), BranchShape(1.0, 0.6 * width)),
        "mixed": lambda width: (BranchShape(0.5, 1.0), BranchShape(0.75, width)),
    },
    "extreme": {
        "extremely shallow": lambda _: (BranchShape(0.01, 1.0), BranchShape(0.01, 1.0)),
        "extremely narrow": lambda width: (BranchShape(1.0, width), BranchShape(1.0, width)),
        "mixed, as small": lambda width: (BranchShape(0.5, width), BranchShape(0.75, width)),
    },
}
"""Ways to scale two branches per stage, after NN-Stretch's ablation. Ways of a group have equal MACs: those of the first one,
whose depths leave no choice."""


def ablation_designs(module: nn.Module, image: Tensor) -> dict[str, Design]:
    """The designs of all ways by name; any number of channels is allowed, so that MACs are equal.

    Raises:
        DesignError: no width of a way has the MACs of its group.
    """
    network = blueprint(module, image, multiple=1)
    found: dict[str, Design] = {}
    for group in ABLATION.values():
        wanted = _two_branches(network, next(iter(group.values()))(1.0)).macs
        found |= {name: _of_macs(network, name, shapes, wanted) for name, shapes in group.items()}
    return found


def _of_macs(network: Blueprint, name: str, shapes: Shapes, wanted: int) -> Design:
    """The design whose MACs are nearest to those wanted."""
    designs = [_two_branches(network, shapes(step / _WIDTHS)) for step in range(_WIDTHS // 8, _WIDTHS + 1)]
    found = min(designs, key=lambda design: abs(design.macs - wanted))
    if abs(found.macs - wanted) > _TOLERANCE * wanted:
        raise DesignError(f"{name}: {wanted} MACs are wanted, the nearest design has {found.macs}; change its shapes")
    return found


def _two_branches(network: Blueprint, shapes: tuple[BranchShape, BranchShape]) -> Design:
    """The design with two branches of these shapes in every stage that can be branched."""
    choices = []
    for stage in network.traced.stages:
        if network.branchable(stage):
            pair = [
                BranchChoice(processor, network.depth_candidates(stage, shape.depth)[-1], shape.width)
                for processor, shape in enumerate(shapes)
            ]
            choices.append(SegmentChoice(stage, network.meeting(stage, pair)))
        else:
            choices.append(SegmentChoice(stage, (BranchChoice.whole(stage, 0),)))
    return make_design(network, choices)
