"""Conversion between float32 and int8 in TFLite."""

from __future__ import annotations

from collections.abc import Mapping

from nnstretch.devices.external.litert.operators.family import Lowering, OperatorFamily
from nnstretch.graph.layers import GraphNode


class Quantizations(OperatorFamily):
    """QUANTIZE and DEQUANTIZE."""

    @property
    def lowerings(self) -> Mapping[str, Lowering]:
        return {"Quantize": self._quantize, "Dequantize": self._dequantize}

    def _quantize(self, node: GraphNode) -> None:
        form = self._tensors.form_of(node)
        self._file.quantize(self._tensors.read(node, 0, form), self._tensors.result(node, form))

    def _dequantize(self, node: GraphNode) -> None:
        form = self._tensors.form_of(node)
        operands = [self._tensors.read(node, 0, form)]
        self._file.operator("DEQUANTIZE", operands, [self._tensors.result(node, form)], table="DequantizeOptions")
