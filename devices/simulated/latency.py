"""How long a profile says that a layer takes."""

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
    """The kind of a layer that is no chain: one of `profile.MEMORY_KINDS` other than "any"."""
    if layer.op == "Dense":
        return "dense"
    if layer.op != "Conv":
        return _MEMORY_KIND.get(layer.op, "other")
    groups = _groups(layer)
    if groups == 1:
        return "conv"
    return "depthwise" if layer.type_of(1).shape[1] == 1 else "grouped"


def layer_seconds(processor: ProcessorProfile, layer: Layer, element_bytes: int) -> float:
    """Seconds of a layer on a processor: launch, arithmetic and memory traffic, one after another; `inf` if it cannot.

    Args:
        processor: the profile.
        layer: of whatever operator; a chain takes as long as its layers.
        element_bytes: bytes of an element of every tensor, whatever type it has in the graph.
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
    """Seconds that the multiplications of a convolution or dense layer take; 0 for others, `inf` if there is no rate."""
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
    """MACs per second in a layer of so many MACs."""
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
    """How many times as long a MAC of a convolution or dense layer takes as with very many channels (see `Throughput`).

    Channels are those of a group. A depthwise layer has a single one there to read: all that it writes count, and no others.
    """
    weight = layer.type_of(1).shape
    if layer_kind(layer) == "depthwise":
        return _loss(weight[0], step[1], half[1])
    return _loss(weight[1], step[0], half[0]) * _loss(weight[0] // _groups(layer), step[1], half[1])


def _loss(channels: int, step: int, half: float) -> float:
    return -(-channels // step) * step / channels * (1 + half / channels)
