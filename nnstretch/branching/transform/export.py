"""Exports branched networks to ONNX graphs whose nodes name the processor they are for."""

from __future__ import annotations

import onnx_ir as ir
from torch import Tensor

from nnstretch.branching.transform.network import BranchedNetwork
from nnstretch.frontends.torch_module import export
from nnstretch.graph.module_path import module_path
from nnstretch.graph.placement import PLACEMENT_KEY


def export_branched(network: BranchedNetwork, example_input: Tensor) -> ir.Model:
    """`network` in evaluation mode as an ONNX graph; the metadata of every node in a branch names its processor.

    The metadata is stored in the ONNX file. Nodes of meeting points and of the head have none: any processor
    may run them.

    Args:
        network: a branched network; its training flags are kept.
        example_input: an `N,C,H,W` batch that it accepts; the graph is for this shape.

    Raises:
        ModelError: torch cannot export the network.
    """
    model = export(network, example_input)
    placement = network.placement
    for node in model.graph:
        processor = _processor(module_path(node), placement)
        if processor is not None:
            node.metadata_props[PLACEMENT_KEY] = str(processor)
    return model


def _processor(path: str, placement: dict[str, int]) -> int | None:
    """The processor of the branch that contains a module path; None outside branches."""
    parts = path.split(".")
    return placement.get(".".join(parts[:4]))
