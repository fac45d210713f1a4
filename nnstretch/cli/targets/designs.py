"""A branched network and its alternatives, as models that are measured against each other on targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from nnstretch.api.options import CompileOptions
from nnstretch.cli.models.sources import GraphSource, Source
from nnstretch.devices.base.spec import ProcessorSpec, parse_processors
from nnstretch.devices.engine.binding.library import MAX_CORES

if TYPE_CHECKING:
    import onnx_ir as ir

    from nnstretch.cli.models.networks import Network

ALL_CORES = "cpu"
"""The processor of a target that has every fast core."""


def design_sources(original: Network, branched: Network, options: CompileOptions) -> list[Source]:
    """The original network and its equal-MACs control on every processor alone and on all cores; then the branched network.

    A network that a design leaves without branches runs where the design says. Layers are not split over processors: that
    needs measurements of the target.

    Args:
        original: the network.
        branched: the branched network.
        options: with the processors of the branches.

    Raises:
        UsageError: the processors are malformed, or not those that the design is for.
        NNStretchError: a network cannot be exported.
    """
    from nnstretch.branching.transform.control import single_branch_control
    from nnstretch.compiler.pool import place_without_branches
    from nnstretch.frontends.torch_module import export

    made = branched.design
    assert made is not None
    control = single_branch_control(original.module, original.example_input, branched.macs, made.multiple)
    alternatives = {
        "original": original.export(),
        "control": export(control, original.example_input),
    }
    named = _processors(options.processors)
    alone = [*named, ALL_CORES] if len(named) > 1 else named
    has_branches = made.meeting_points or options.processors == ALL_CORES
    place = options.processors if has_branches else place_without_branches(made, _specs(options.processors))
    return [
        *(_source(name, graph, on, options) for name, graph in alternatives.items() for on in alone),
        _source("branched", branched.export(), place, options),
    ]


def _processors(text: str) -> Sequence[str]:
    """The processors of a list, each as `--processors` takes it; "cpu" stands for the fast cores of a target."""
    if text == ALL_CORES:
        return [text]
    return [str(spec) for spec in _specs(text)]


def _specs(text: str) -> Sequence[ProcessorSpec]:
    return parse_processors(text, tuple(range(MAX_CORES)))


def _source(name: str, graph: ir.Model, processors: str, options: CompileOptions) -> GraphSource:
    where = "all fast cores" if processors == ALL_CORES else processors
    return GraphSource(f"{name} on {where}", replace(options, processors=processors), graph=graph)
