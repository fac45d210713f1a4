"""Branched modules with inherited weights, from a search, a saved design, or a published file."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from nnstretch.branching.design.blueprint import Blueprint, blueprint
from nnstretch.branching.design.design import Design
from nnstretch.branching.latency.prediction import LatencyPredictor, Prediction
from nnstretch.branching.pycls.files import PublishedNetwork
from nnstretch.branching.pycls.to_design import design_of, differences
from nnstretch.branching.search.options import SearchOptions
from nnstretch.branching.search.report import SearchReport
from nnstretch.branching.search.search import search
from nnstretch.branching.transform.build import BuiltNetworks, build
from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.zoo.weights import initialise


@dataclass(frozen=True, eq=False, repr=False)
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

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.design}>"

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


def stretch(prepared: Blueprint, predictor: LatencyPredictor, options: SearchOptions) -> list[StretchResult]:
    """Branched networks with inherited weights, fastest first.

    Args:
        prepared: the network; latencies are predicted for the shape of its example input.
        predictor: of latencies.
        options: of the search.

    Raises:
        DesignError: no design meets the limits; the message says what would.
    """
    networks = BuiltNetworks(prepared)
    found, report = search(prepared, predictor, options, networks)
    results = []
    for number, design in enumerate(found):
        options.progress(number, len(found), "building networks with inherited weights")
        results.append(StretchResult(design, networks.of(design), report))
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
    prepared = blueprint(module, example_input, merge=network.merge)
    design = design_of(network, prepared)
    return PublishedResult(design, build(prepared, design), tuple(differences(network, prepared)))


def reinitialise(network: BranchedNetwork, example_input: Tensor, seed: int = 0) -> None:
    """Replaces the inherited weights of a branched network by fresh ones for training from scratch."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        initialise(network, example_input.shape[1], None)
