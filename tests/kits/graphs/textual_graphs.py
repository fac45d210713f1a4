"""Small graphs in ONNX's textual syntax, and what tests of passes say about their layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx_ir as ir
from onnx import numpy_helper, parser

from nnstretch.graph.layers import GraphNode

Check = Callable[..., list[GraphNode]]
"""The fixture `check`: optimises a model, compares its outputs, and returns its layers."""


def model_of(text: str, weights: Mapping[str, np.ndarray] | None = None, opset: int = 20) -> ir.Model:
    """A model from ONNX's textual syntax of a graph, with these initializers."""
    proto = parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]>\n{text}')
    for name, array in (weights or {}).items():
        proto.graph.initializer.append(numpy_helper.from_array(array, name))
    return ir.from_proto(proto)


def operators(nodes: Sequence[GraphNode]) -> list[str]:
    return [f"{node.layer.op}+{node.layer.activation}" for node in nodes]


def normal(*shape: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


CONV = {"w": normal(4, 3, 3, 3), "b": normal(4)}
"""Weights of a 3×3 convolution of three channels to four."""
BATCH_NORM = {
    "gamma": normal(4, seed=2),
    "beta": normal(4, seed=3),
    "mean": normal(4, seed=4),
    "var": normal(4, seed=5) ** 2,
}
"""Parameters of a batch normalisation of its result."""
