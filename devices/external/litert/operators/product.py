"""Products of matrices, and attention, in TFLite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from math import prod

import numpy as np

from nnstretch.devices.external.litert.operators.family import Lowering, OperatorFamily
from nnstretch.errors import ModelError
from nnstretch.graph.layers import GraphNode

_MOST_AXES = 5
"""Axes of an operand of BATCH_MATMUL at most."""


class Products(OperatorFamily):
    """Layers with products of run-time tensors."""

    @property
    def lowerings(self) -> Mapping[str, Lowering]:
        return {"MatMul": self._matmul, "Attention": self._attention}

    def _matmul(self, node: GraphNode) -> None:
        """Writes a product of matrices, whose batches broadcast.

        Raises:
            ModelError: the batches have more axes than TFLite takes.
        """
        layer = node.layer
        operands = [self._operand(node, index) for index in (0, 1)]
        shapes = [self._file.shape(operand) for operand in operands]
        with self._before_activation(node, "plain") as result:
            made, extents = result, layer.outputs[0].shape
            if len(extents) > _MOST_AXES:
                batches = _merged_batches(shapes[0][:-2], shapes[1][:-2])
                if len(batches[0]) + 2 > _MOST_AXES:
                    raise ModelError(f"layer {layer.name} (MatMul) has {len(extents)} axes; TFLite takes {_MOST_AXES}")
                operands = [
                    self._reshaped(operand, (*batch, *shape[-2:]))
                    for operand, batch, shape in zip(operands, batches, shapes, strict=True)
                ]
                made = self._file.tensor((*map(max, *batches), *extents[-2:]), f"{layer.name}:merged")
            transposed = [bool(layer.integer(name)) for name in ("transpose_x", "transpose_y")]
            self._product(operands, made, *transposed)
            if made != result:
                self._tensors.reshaped(made, result)

    def _operand(self, node: GraphNode, index: int) -> int:
        value, name = node.layer.constants.get(index), node.inputs[index]
        return self._tensors.read(node, index, "plain") if value is None else self._file.weight(value, str(name))

    def _product(self, operands: Sequence[int], result: int, transpose_x: bool, transpose_y: bool) -> None:
        options = {"adjX": transpose_x, "adjY": transpose_y}
        self._file.operator("BATCH_MATMUL", operands, [result], options, table="BatchMatMulOptions")

    def _attention(self, node: GraphNode) -> None:
        """Writes the scores of all heads B,H,L,S, their softmax, and its products with the values."""
        layer, shape = node.layer, node.layer.outputs[0].shape
        heads, groups, scale = layer.integer("heads"), layer.integer("groups"), layer.attributes["scale"]
        queries, keys, values = (
            self._heads(node, index, count) for index, count in ((0, heads), (1, groups), (2, groups))
        )
        if layer.attributes.get("epsilon", 0.0):
            queries, keys = self._normalised(node, queries), self._normalised(node, keys)
        batch, _, length, _ = self._file.shape(queries)
        factor = self._file.constant(np.array(scale, np.float32), f"{layer.name}:scale")
        scaled = self._computed("MUL", [queries, factor], self._file.shape(queries), table="MulOptions")
        extents = (batch, heads, length, self._file.shape(keys)[2])
        scores = self._file.tensor(extents, f"{layer.name}:scores")
        self._product([scaled, keys], scores, transpose_x=False, transpose_y=True)
        if layer.has(5):
            scores = self._computed("MUL", [scores, self._operand(node, 5)], extents, table="MulOptions")
        for index in (3, 4):
            if layer.has(index):
                scores = self._computed(
                    "ADD", [scores, self._tensors.read(node, index, "plain")], extents, table="AddOptions"
                )
        weights = self._computed("SOFTMAX", [scores], extents, {"beta": 1.0}, table="SoftmaxOptions")
        depth = self._file.shape(values)[3]
        mixed = self._file.tensor((batch, heads, length, depth), f"{layer.name}:values")
        self._product([weights, values], mixed, transpose_x=False, transpose_y=False)
        rows = self._transposed(mixed, (0, 2, 1, 3))
        with self._before_activation(node, "last" if len(shape) == 4 else "plain") as result:
            self._tensors.reshaped(rows, result)

    def _normalised(self, node: GraphNode, heads: int) -> int:
        """B,heads,L,D of an attention, divided by the norms over D."""
        *outer, depth = self._file.shape(heads)
        norms, name = (*outer, 1), node.layer.name
        squares = self._computed("MUL", [heads, heads], (*outer, depth), table="MulOptions")
        axes = self._integers((3,), f"{name}:axes")
        sums = self._computed("SUM", [squares, axes], norms, {"keepDims": True}, table="ReducerOptions")
        least = self._file.constant(np.array(node.layer.attributes["epsilon"], np.float32), f"{name}:epsilon")
        roots = self._computed("SQRT", [sums], norms)
        divisors = self._computed("MAXIMUM", [roots, least], norms, table="MaximumMinimumOptions")
        return self._computed("DIV", [heads, divisors], (*outer, depth), table="DivOptions")

    def _heads(self, node: GraphNode, index: int, count: int) -> int:
        """Input `index` of an attention with `count` heads, as B,heads,L,D."""
        image = len(node.layer.type_of(index).shape) == 4
        source = self._tensors.read(node, index, "last" if image else "plain")
        *outer, length, channels = self._file.shape(source)
        split = self._reshaped(source, (prod(outer), length, count, channels // count))
        return self._transposed(split, (0, 2, 1, 3))


def _merged_batches(x: Sequence[int], y: Sequence[int]) -> tuple[list[int], list[int]]:
    """Batches that broadcast, with neighbours that broadcast alike as one axis."""
    rank = max(len(x), len(y))
    pairs = list(zip((1,) * (rank - len(x)) + tuple(x), (1,) * (rank - len(y)) + tuple(y), strict=True))
    kept = [pair for pair in pairs if pair != (1, 1)] or [(1, 1)]
    merged = [list(group) for _, group in groupby(kept, key=lambda pair: (pair[0] == 1, pair[1] == 1))]
    return [prod(a for a, _ in group) for group in merged], [prod(b for _, b in group) for group in merged]
