"""Latency of layers according to a profile."""

from __future__ import annotations

import itertools
import math

from nnstretch.devices.base.routine import REORDER
from nnstretch.devices.simulated.profile import ProcessorProfile, Throughput
from nnstretch.graph.layer import Layer

_MEMORY_KIND = {
    **dict.fromkeys(("MaxPool", "AveragePool", "GlobalPool"), "pool"),
    **dict.fromkeys(("Activation", "Add", "Sub", "Mul", "Affine", "Softmax"), "elementwise"),
    **dict.fromkeys(("Concat", "Reshape", "Transpose", "Slice", REORDER), "move"),
}


def layer_kind(layer: Layer) -> str:
    """Kind of a single layer (not a fusion group): one of `profile.MEMORY_KINDS` except "any"."""
    if layer.op == "Dense":
        return "dense"
    if layer.op != "Conv":
        return _MEMORY_KIND.get(layer.op, "other")
    groups = _groups(layer)
    if groups == 1:
        return "conv"
    return "depthwise" if layer.type_of(1).shape[1] == 1 else "grouped"


def layer_seconds(processor: ProcessorProfile, layer: Layer, element_bytes: int) -> float:
    """Latency of a layer in seconds: the sum of launch, arithmetic and memory traffic; `inf` if unsupported.

    Args:
        processor: the profile.
        layer: a layer; the latency of a fusion group is the sum over its layers.
        element_bytes: bytes per element of every tensor, whatever its type in the graph.
    """
    if layer.parts:
        return sum(layer_seconds(processor, link, element_bytes) for link in layer.parts)
    kind = layer_kind(layer)
    moved = element_bytes * sum(t.elements for t in (*layer.inputs, *layer.outputs) if t is not None)
    rates = processor.memory_gb_per_s
    return (
        processor.launch_us * 1e-6
        + arithmetic_seconds(processor, layer)
        + moved / (rates.get(kind, rates["any"]) * 1e9)
    )


def arithmetic_seconds(processor: ProcessorProfile, layer: Layer) -> float:
    """Arithmetic time of a convolution or dense layer in seconds; 0 for other layers, `inf` without a rate."""
    if layer.op not in ("Conv", "Dense"):
        return 0.0
    kind = layer_kind(layer)
    sized = f"{kind}:{'x'.join(map(str, layer.type_of(1).shape[2:]))}"
    throughput = processor.compute.get(sized) or processor.compute.get(kind)
    if throughput is None:
        return math.inf
    padded = loss(layer, throughput.step, throughput.half)
    return layer.macs * padded / rate(throughput, layer.macs) + throughput.group_us * 1e-6 * _groups(layer)


def rate(throughput: Throughput, macs: float) -> float:
    """MACs per second of a layer with `macs` MACs."""
    points = throughput.gmacs_per_s
    if macs <= points[0][0]:
        return points[0][1] * 1e9
    for (low, slow), (high, fast) in itertools.pairwise(points):
        if macs <= high:
            share = math.log(macs / low) / math.log(high / low)
            return (slow + share * (fast - slow)) * 1e9
    return points[-1][1] * 1e9


def _groups(layer: Layer) -> int:
    groups = layer.attributes.get("groups", 1)
    assert isinstance(groups, int)
    return groups


def loss(layer: Layer, step: tuple[int, int], half: tuple[float, float]) -> float:
    """Time of a MAC relative to that with very many channels, for a convolution or dense layer (see `Throughput`).

    Channels are counted per group; a depthwise layer counts its output channels only.
    """
    weight = layer.type_of(1).shape
    if layer_kind(layer) == "depthwise":
        return _loss(weight[0], step[1], half[1])
    return _loss(weight[1], step[0], half[0]) * _loss(weight[0] // _groups(layer), step[1], half[1])


def _loss(channels: int, step: int, half: float) -> float:
    return -(-channels // step) * step / channels * (1 + half / channels)
