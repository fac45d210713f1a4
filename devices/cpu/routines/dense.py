"""Dense layers on plain tensors."""

from __future__ import annotations

import numpy as np

from nnstretch.devices.cpu.routines.window import has_constant_weights, lowering
from nnstretch.devices.routine import PLAIN, Descriptor, Layout, Lowering, Parameters, Routine
from nnstretch.graph.layer import Layer


class Dense(Routine):
    """x · Wᵀ + bias + residual with activation; weights are read once, at the memory's speed for small batches."""

    descriptor = Descriptor("cpu", "float32", "dense")

    def __init__(self, block: int, vectors: int) -> None:
        """`block` is the engine's; `vectors` are the output vectors per panel of its kernel."""
        self.block = block
        self.vectors = vectors

    def supports(self, layer: Layer) -> bool:
        return layer.op == "Dense" and has_constant_weights(layer) and len(layer.type_of(0).shape) == 2

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        return (PLAIN,) * len(layer.activations), (PLAIN,)

    def lower(self, layer: Layer, parameters: Parameters) -> Lowering:
        outputs, inputs = layer.type_of(1).shape
        width = self.vectors * self.block
        lanes = -(-outputs // width) * width
        weights = np.zeros((lanes, inputs), np.float32)
        weights[:outputs] = layer.constants[1]
        panels = weights.reshape(lanes // width, width, inputs).transpose(0, 2, 1)
        batch = layer.type_of(0).shape[0]
        return lowering(f"dense_v{self.vectors}", layer, panels, lanes, (batch, inputs, outputs))
