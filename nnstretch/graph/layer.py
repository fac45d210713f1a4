"""Layers: what one node of a fused graph computes, as routines and the scheduler see it.

After the passes of `nnstretch.passes` a node is either of domain `nnstretch` and one of the operators below, or still
a plain ONNX operator, which only the fallback (ONNX Runtime) can run.

============  ====================================================  ======================================================
operator      inputs (shapes; [c] = constant, [o] = optional)       attributes beside `activation`
============  ====================================================  ======================================================
Conv          x N,C,H,W; weight O,C/g,KH,KW [c]; bias O [c][o];     strides (h,w); pads (top,left,bottom,right);
              residual like the output [o] (added before the        dilations (h,w); groups
              activation); scales O [c][o] (of int8 weights)
Dense         x N,K; weight M,K [c]; bias M [c][o]; residual
              N,M [o]; scales M [c][o] (of int8 weights)
MaxPool       x N,C,H,W                                             kernel (h,w); strides; pads; dilations
AveragePool   x N,C,H,W                                             kernel; strides; pads; count_include_pad (0/1)
GlobalPool    x N,C,H,W -> N,C,1,1                                  mode: "average" | "max"
Activation    x any shape
Add Sub Mul   x any shape; y the same shape, or N,C,1,1 for a
Div Max Min   4-D x, or one that broadcasts to 1,C,1,1 or is a
              scalar (then usually [c])
Affine        x N,C,H,W; scale C [c]; shift C [c]: x*scale+shift
PRelu         x N,C,…; slope C [c]: x < 0 ? slope*x : x
Concat        x0, x1, …                                             axis (>= 0)
Softmax       x any shape                                           axis (>= 0)
LayerNorm     x any shape; scale L [c][o]; shift L [c][o], with    axis (>= 0); epsilon; rms (0/1: the mean is not
              the extent L of the axis                              subtracted)
GroupNorm     x N,C,…; scale C [c][o]; shift C [c][o]               groups; epsilon: over the channels of a group and all
                                                                    pixels; instance normalisation has C groups
Attention     q N,H·D,W,L; k N,G·D,W,S; v N,G·E,W,S; two biases     heads (H); groups (G, 1 or H); scale; epsilon: where it
              that broadcast to N·W,H,L,S [o]; factors of the       is above 0, queries and keys of a head are divided by
              products of queries and keys that broadcast to        max(their Euclidean norm, epsilon); 0 if it is missing
              N·W,H,1,1 [c][o] -> N,H·E,W,L: W windows of L
              queries and S keys; or q, k, v and result as tokens
              B,L,C instead, with N·W = B
MatMul        x …,M,K; y …,K,N: the images … broadcast -> …,M,N     transpose_x, transpose_y (0/1): the last two axes of the
                                                                    operand are swapped
Recurrence    x T,B,D·G·H or B,T,D·G·H or N,D·G·H,…: sums of the    cell: "lstm" | "gru" | "gru_reset_after" with G = 4, 3, 3
              gates from the layer's input and biases; weight       gates in ONNX's order (the last: linear_before_reset);
              D,G·H,H [c]; bias D,H [c][o] of the candidate's       axis: of the steps, 0 or 1, or of a 4-D x 2 or 3 (then
              product ("gru_reset_after"); first hidden states      B is N and the other axis); direction: "forward" |
              D,B,H [o]; first cell states D,B,H [o] ("lstm") ->    "reverse" (from the last step on) | "bidirectional"
              the hidden states of all steps, with D·H channels     (D = 2)
Resize        x N,C,H,W -> N,C,OH,OW                                mode: "nearest" | "linear" | "cubic" |
                                                                    "linear_antialias" | "cubic_antialias"; coordinates:
                                                                    "half_pixel" | "half_pixel_symmetric" |
                                                                    "asymmetric" | "align_corners" | "pytorch_half_pixel";
                                                                    nearest: "floor" | "round_prefer_floor" | …;
                                                                    scales (h,w); of the cubic modes: cubic_coefficient,
                                                                    exclude_outside (0/1)
Reduce        x any shape -> without the axes, or with 1 there       axes: neighbours, in order (>= 0); mode: "sum" | "mean" |
                                                                    "max" | "min" | "l1" | "l2" | "squares" | "product"
Pad           x any shape                                           pads: before each axis, then after each (>= 0);
                                                                    mode: "constant" | "reflect" | "edge" | "wrap";
                                                                    value: of mode "constant"
Reshape       x any shape (row-major order kept: Flatten,
              Squeeze, Unsqueeze, Reshape)
Transpose     x any shape                                           perm: axis of x that each axis of the result is
Rearrange     x N,C,H,W -> N',C,H',W': the pixels (images too) in     sizes: factors of N·H·W, outermost first; perm: factor
              another order                                         of x that each factor of the result is
Slice         x any shape                                           starts, steps (> 0), one per axis; where it ends is in
                                                                    the output's shape
Expand        x any shape that broadcasts to the output's
DepthToSpace  x N,s²C,H,W -> N,C,sH,sW                              size: s; mode: "DCR" | "CRD", the order of x's channels
                                                                    (ONNX)
SpaceToDepth  x N,C,sH,sW -> N,s²C,H,W                              size: s
Cast          x any shape, of a type that is not quantised ->
              another type; one of both is float32
Quantize      x any shape -> int8
Dequantize    x any shape, int8 -> float32
============  ====================================================  ======================================================

Reshape, Transpose, Slice and Concat without activation move elements of any one type. Otherwise all tensors
are float32, or those that a layer reads and makes in the run are int8, each with quantization parameters of
its own (`TensorType.quantization`). An int8 layer computes what the operator makes of the numbers that its inputs
stand for, and rounds the result to the parameters of its output; it depends on the routine in what precision,
so the last bit may differ. Int8 weights stand for themselves times the `scales` of their output channels, an
int32 bias for itself times these and the scale of x. Reshape, Transpose, Slice and MaxPool have the same
quantization parameters for input and output.

Fusion groups (`fused_layer`, `fused_pair`) are layers of operator Chain. They exist in no graph: selection makes them of two or
more layers that one routine may compute as one.

Ceil mode and auto_pad are resolved to explicit shapes and pads: the output's shape is in the layer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType

import numpy as np

from nnstretch.graph.activation import NO_ACTIVATION, Activation
from nnstretch.graph.dtypes import DEFAULT_DTYPE, ElementType, QuantizationParameters, element_type

DOMAIN = "nnstretch"
NARROW_WEIGHTS = 64
"""Largest absolute value of int8 weights whose products with two uint8 numbers have a sum within int16."""
FUSION_GROUP = "Chain"
"""Operator of several layers that one routine computes; part of the workload keys of stored profiles."""
OPERATORS: Mapping[str, str] = {
    "Conv": "conv",
    "Dense": "dense",
    **dict.fromkeys(("Attention", "MatMul", "Recurrence"), "dense"),
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalPool"), "pool"),
    **dict.fromkeys(
        (
            "Activation",
            "Add",
            "Sub",
            "Mul",
            "Div",
            "Max",
            "Min",
            "Affine",
            "PRelu",
            "Softmax",
            "LayerNorm",
            "GroupNorm",
        ),
        "elementwise",
    ),
    **dict.fromkeys(
        ("Concat", "Reshape", "Transpose", "Slice", "Expand", "DepthToSpace", "SpaceToDepth", "Rearrange", "Cast"),
        "move",
    ),
    **dict.fromkeys(("Resize", "Reduce", "Pad", "Quantize", "Dequantize"), "other"),
}
"""Operator -> its kind, for charts and for the rates of simulated processors. Those of "move" move elements and change none,
without their activation: their tensors may be of any type."""

Attribute = int | float | str | tuple[int, ...] | tuple[float, ...]


@dataclass(frozen=True)
class TensorType:
    """Static shape (outermost dimension first) and element type of a tensor.

    Attributes:
        shape: extents.
        dtype: name of the element type (`nnstretch.graph.dtypes`).
        quantization: of an int8 tensor that stands for float32 numbers. Types that differ in nothing else are equal, because
            storage and costs do not depend on it.
    """

    shape: tuple[int, ...]
    dtype: str = DEFAULT_DTYPE
    quantization: QuantizationParameters | None = field(default=None, compare=False)

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def element(self) -> ElementType:
        """Size, kind and storage type of the elements."""
        return element_type(self.dtype)

    @property
    def bytes(self) -> int:
        """Bytes of the row-major array."""
        return self.elements * self.element.bytes

    def __str__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"


@dataclass(frozen=True, eq=False)
class Layer:
    """One fused operator with everything that is known of it before it runs.

    Attributes:
        name: unique in the graph, for people.
        op: one of OPERATORS, FUSION_GROUP, or "onnx:<operator>" for what only the fallback runs.
        inputs: types of the inputs in the order of the table above; None where an optional one is absent.
        outputs: types of the outputs.
        attributes: integers, floats, strings and tuples of them, as in the table above.
        activation: applied to the result, last.
        constants: input index -> value, for inputs known before the run (weights).
        parts: layers that a layer of operator FUSION_GROUP computes one after another.
        wiring: for each part where its run-time inputs come from, in the order of its `activations`: input i of
            the fusion group as i, and tensor j of all that its parts make, counted in their order, as -1 - j.
        results: of an operator FUSION_GROUP the tensors, counted in this way, that are its outputs.
    """

    name: str
    op: str
    inputs: tuple[TensorType | None, ...]
    outputs: tuple[TensorType, ...]
    attributes: Mapping[str, Attribute] = field(default_factory=lambda: MappingProxyType({}))
    activation: Activation = NO_ACTIVATION
    constants: Mapping[int, np.ndarray] = field(default_factory=lambda: MappingProxyType({}))
    parts: tuple[Layer, ...] = ()
    wiring: tuple[tuple[int, ...], ...] = ()
    results: tuple[int, ...] = ()

    def integer(self, name: str, default: int | None = None) -> int:
        """The attribute `name`, which is an integer; `default` if it is missing and there is one."""
        value = self.attributes[name] if default is None else self.attributes.get(name, default)
        assert isinstance(value, int)
        return value

    def ints(self, name: str) -> tuple[int, ...]:
        """The attribute `name`, which is a tuple of integers."""
        value = self.attributes[name]
        assert isinstance(value, tuple)
        return tuple(int(v) for v in value)

    def has(self, index: int) -> bool:
        """Whether input `index` is present."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def type_of(self, index: int) -> TensorType:
        """Type of input `index`, which must be present."""
        found = self.inputs[index]
        assert found is not None
        return found

    @property
    def is_int8(self) -> bool:
        """Whether it, or one of its parts, reads or makes int8 numbers in the run."""
        types = (*(self.type_of(i) for i in self.activations), *self.outputs)
        return any(t.quantization is not None for t in types) or any(link.is_int8 for link in self.parts)

    @cached_property
    def has_narrow_weights(self) -> bool:
        """Whether it is a Conv or Dense with int8 weights within ±64, not all zeros: some CPUs compute faster with them."""
        weights = self.constants.get(1)
        if self.op not in ("Conv", "Dense") or weights is None or weights.dtype != np.int8:
            return False
        return 0 < max(int(weights.max(initial=0)), -int(weights.min(initial=0))) <= NARROW_WEIGHTS

    @property
    def activations(self) -> tuple[int, ...]:
        """Indices of the inputs that are computed at run time, in order."""
        return tuple(i for i, t in enumerate(self.inputs) if t is not None and i not in self.constants)

    @cached_property
    def workload(self) -> str:
        """Tuning key: layers with equal workloads cost the same, so one is profiled (ACLTuner, task de-duplication).

        Holds operator, types, attributes, fusion, which inputs are constant and whether weights are narrow, but neither names
        nor weights' values.
        """
        description: dict[str, object] = {
            "op": self.op,
            "inputs": [str(t) if t else None for t in self.inputs],
            "constants": sorted(self.constants),
            "outputs": [str(t) for t in self.outputs],
            "attributes": {k: self.attributes[k] for k in sorted(self.attributes)},
            "activation": str(self.activation),
        }
        if self.has_narrow_weights:
            description["weights"] = "narrow"
        if self.parts:
            description["chain"] = [layer.workload for layer in self.parts]
            description["wiring"] = self.wiring
            description["results"] = self.results
        return json.dumps(description, separators=(",", ":"))

    @property
    def macs(self) -> int:
        """Multiply-accumulates of convolutions and products of matrices, `product_macs` included; 0 for other layers."""
        if self.parts:
            return sum(layer.macs for layer in self.parts)
        return multiply_accumulates(
            self.op, [None if t is None else t.shape for t in self.inputs], self.outputs[0].shape, self.attributes
        )

    @property
    def product_macs(self) -> int:
        """Those of `macs` in products of matrices that are computed at run time, which no network's MACs include."""
        if self.parts:
            return sum(layer.product_macs for layer in self.parts)
        return self.macs if self.op in RUN_TIME_PRODUCTS else 0

    @property
    def weight_bytes(self) -> int:
        """Bytes of the constants."""
        return sum(a.nbytes for a in self.constants.values()) + sum(layer.weight_bytes for layer in self.parts)


RUN_TIME_PRODUCTS = frozenset({"Attention", "MatMul"})
"""Operators that multiply matrices which are computed at run time. Their MACs are no part of those of networks."""


def multiply_accumulates(
    op: str,
    inputs: Sequence[tuple[int, ...] | None],
    output: tuple[int, ...],
    attributes: Mapping[str, object],
) -> int:
    """Multiply-accumulates of one layer, from the shapes of its inputs and output."""
    results = math.prod(output)
    if op == "MatMul" and inputs[0]:
        return results * inputs[0][-2 if attributes["transpose_x"] else -1]
    if op == "Attention" and inputs[0] and inputs[1]:
        # Every query meets all keys of its window: the last axis, or axis 1 of rows of channels.
        return (math.prod(inputs[0]) + results) * inputs[1][-1 if len(inputs[1]) == 4 else 1]
    if op == "Recurrence" and inputs[0] and inputs[1]:
        # Every gate meets all hidden states of its direction.
        return math.prod(inputs[0]) * inputs[1][-1]
    if op == "onnx:ConvTranspose" and inputs[0] and inputs[1]:
        # Each input meets its filters' whole kernels, even where padding crops the output.
        return math.prod(inputs[0]) * math.prod(inputs[1][1:])
    weight = inputs[1] if op in ("Conv", "Dense") and len(inputs) > 1 else None
    return results * math.prod(weight[1:]) if weight else 0


def fused_layer(links: Sequence[Layer], wiring: Sequence[Sequence[int]], results: Sequence[int] | None = None) -> Layer:
    """The fusion group that computes `links` one after another; no other layer reads what they make beside its outputs.

    Its inputs are those that `wiring` (see `Layer`) names, its outputs those of `results`, or else all of the last layer's. All
    weights stay in `parts`.
    """
    types: dict[int, TensorType] = {}
    for link, sources in zip(links, wiring, strict=True):
        for index, source in zip(link.activations, sources, strict=True):
            if source >= 0:
                types[source] = link.type_of(index)
    made = [tensor for link in links for tensor in link.outputs]
    if results is None:
        results = range(len(made) - len(links[-1].outputs), len(made))
    name = f"{links[0].name}{'+' if len(links) == 2 else '…'}{links[-1].name}" if len(links) > 1 else links[0].name
    return Layer(
        name,
        FUSION_GROUP,
        tuple(types[i] for i in range(len(types))),
        tuple(made[i] for i in results),
        parts=tuple(links),
        wiring=tuple(map(tuple, wiring)),
        results=tuple(results),
    )


def fused_pair(first: Layer, second: Layer) -> Layer:
    """The layer that computes `second` on what `first` makes, its input 0.

    Its inputs are the run-time inputs of `first`, then those of `second` but its input 0.
    """
    count = len(first.activations)
    rest = len([i for i in second.activations if i != 0])
    return fused_layer((first, second), (range(count), (-1, *range(count, count + rest))))
