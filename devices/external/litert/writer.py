"""Conversion of graphs to TFLite files, in float32 and int8.

TFLite's images are N,H,W,C. Every 4-D tensor has up to two forms (`tensors.py`); an operator requests the form that it
works in. 4-D inputs and outputs of the file are channels last, or N,C,H,W on request.

int8 layers become int8 operators with the quantization parameters of their tensors. Where TFLite requires equal parameters
of input and result, a QUANTIZE follows. Layers without an int8 operator run in float32 between DEQUANTIZE and QUANTIZE.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from nnstretch.devices.external.litert.flatbuffer import FlatModel
from nnstretch.devices.external.litert.int8 import in_float32, supports_int8
from nnstretch.devices.external.litert.operators import FAMILIES
from nnstretch.devices.external.litert.ranges import Ranges
from nnstretch.devices.external.litert.tensors import TO_LAST, Form, FormedTensors, natural_form
from nnstretch.errors import ModelError
from nnstretch.graph.layer import TensorType
from nnstretch.graph.layers import GraphNode, graph_inputs, graph_outputs, layers
from nnstretch.passes import optimize


def write_tflite(
    model: ir.Model,
    name: str = "model",
    *,
    channels_last: bool = True,
    float16_weights: bool = False,
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Converts an ONNX graph to a TFLite file.

    Args:
        model: not fused, with static shapes; inputs and outputs are float32 or quantised int8.
        name: display name of the sub-graph.
        channels_last: whether 4-D inputs and outputs of the file are N,H,W,C; else they are N,C,H,W, and the file
            transposes them.
        float16_weights: whether weights of float32 layers are stored as float16; the layers compute in float32.
        metadata: texts that the file carries, by key.

    Returns:
        The file's bytes. Inputs and outputs are in the graph's order and have its names, also in the file's signature.

    Raises:
        ModelError: a layer, which the message names, has no counterpart in TFLite; an input, an output or a tensor between
            layers is of another type; or the weights exceed 2 GB.
        MissingExtraError: the package with the file's schema is not installed.
    """
    return _Writer(optimize(model), name, halves=float16_weights).write(metadata or {}, channels_last=channels_last)


class _Writer:
    def __init__(self, graph: ir.Model, name: str, *, halves: bool) -> None:
        self._graph = graph
        self._file = FlatModel(name, halves=halves)
        self._tensors = FormedTensors(self._file)
        self._ranges = Ranges()
        families = [family(self._file, self._tensors, self._ranges) for family in FAMILIES]
        self._lowerings = {op: lowering for family in families for op, lowering in family.lowerings.items()}

    def write(self, metadata: Mapping[str, str], *, channels_last: bool) -> bytes:
        for role, ends in (("input", graph_inputs(self._graph)), ("output", graph_outputs(self._graph))):
            for name, kind in ends:
                _check_type(role, name, kind)
        nodes = layers(self._graph)
        foreign = [f"{node.layer.name} ({_title(node)})" for node in nodes if node.layer.op not in self._lowerings]
        if foreign:
            more = f" and {len(foreign) - 3} more" if len(foreign) > 3 else ""
            raise ModelError(f"TFLite files have no counterpart of layer {', '.join(foreign[:3])}{more}")

        def outer(shape: Sequence[int]) -> Form:
            return natural_form(shape) if channels_last else "plain"

        inputs = {name: self._tensors.new(name, kind, outer(kind.shape)) for name, kind in graph_inputs(self._graph)}
        for node in nodes:
            if node.layer.is_int8 and not supports_int8(node.layer):
                self._detour(node)
            else:
                self._lowerings[node.layer.op](node)
            self._ranges.record(node)
        outputs: dict[str, int] = {}
        for value, (name, kind) in zip(self._graph.graph.outputs, graph_outputs(self._graph), strict=True):
            found = self._output(value, outer(kind.shape))
            if found in inputs.values() or found in outputs.values():
                copied = self._file.like(found, name)
                self._tensors.reshaped(found, copied)
                found = copied
            self._file.rename(found, name)
            outputs[name if name not in outputs else f"{name}:{len(outputs)}"] = found
        return self._file.finish(inputs, outputs, metadata)

    def _output(self, value: ir.Value, form: Form) -> int:
        """The tensor of an output; a constant is copied, as LiteRT has no constant outputs."""
        if not value.is_initializer() or value.const_value is None:
            return self._tensors.get(str(value.name), form)
        array = value.const_value.numpy()
        constant = self._file.constant(
            np.ascontiguousarray(array.transpose(TO_LAST) if form == "last" else array), f"{value.name}:constant"
        )
        copied = self._file.like(constant, str(value.name))
        self._tensors.reshaped(constant, copied)
        return copied

    def _detour(self, node: GraphNode) -> None:
        """Writes an int8 layer in float32 between DEQUANTIZE and QUANTIZE."""
        before, computed, after = in_float32(node)
        for part in (*(part for part in before if part.outputs[0] not in self._tensors), computed, *after):
            self._lowerings[part.layer.op](part)


def _check_type(role: str, name: str, kind: TensorType) -> None:
    """Refuses inputs and outputs of types that these files do not have, or without elements."""
    if kind.dtype != "float32" and kind.quantization is None:
        raise ModelError(f"{role} {name!r} is {kind.dtype}; TFLite files are written for float32 and quantised int8")
    if not kind.elements:
        raise ModelError(f"{role} {name!r} has the shape {list(kind.shape)} and no elements; give a larger --shape")


def _title(node: GraphNode) -> str:
    return node.layer.op.removeprefix("onnx:")
