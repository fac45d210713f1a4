"""Shares of a layer: contiguous ranges of its output channels, each computed by a layer of its own.

A share of a convolution or dense layer reads the whole input, its own rows of weight, bias and scales, and its own channels of
the residual. A share of a pool or depthwise convolution reads its own channels of the input alone. The concatenated shares are
the layer's result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

import numpy as np

from nnstretch.graph.layer import Layer, TensorType

CHANNELS = 16
"""Shares are multiples of this number of channels, a multiple of the block of every layout."""
LEAST_SHARE = 0.005
"""Least share of the network's time of layers that are worth splitting."""
RESIDUAL = 3
"""The input of Conv and Dense that has the output's shape."""
_ROWS = (1, 2, 4)
"""Inputs that have a row for every channel: weights, bias, and the scales of int8 weights."""
_POOLS = ("MaxPool", "AveragePool", "GlobalPool")


def is_divisible(layer: Layer) -> bool:
    """Whether a layer can be split into shares that are contiguous in memory.

    Divisible are pools, dense layers, convolutions of one group and depthwise convolutions, for one image and with constant
    weights.
    """
    if layer.outputs[0].shape[0] != 1:
        return False
    if layer.op in _POOLS:
        return True
    if layer.op not in ("Conv", "Dense") or not (layer.attributes.get("groups", 1) == 1 or _is_depthwise(layer)):
        return False
    return all(row in layer.constants for row in _ROWS if layer.has(row))


def sliced_inputs(layer: Layer) -> tuple[int, ...]:
    """Inputs of a divisible layer that a share reads only its own channels of."""
    if layer.op in _POOLS:
        return (0,)
    residual = (RESIDUAL,) if layer.has(RESIDUAL) else ()
    return (0, *residual) if _is_depthwise(layer) else residual


def _is_depthwise(layer: Layer) -> bool:
    channels = layer.outputs[0].shape[1]
    return layer.op == "Conv" and channels > 1 and layer.attributes["groups"] == channels == layer.type_of(0).shape[1]


def bounds(channels: Sequence[int]) -> list[tuple[int, int]]:
    """Begin and end of consecutive shares with these numbers of channels."""
    return list(pairwise(accumulate(channels, initial=0)))


def even_shares(channels: int, seconds: Mapping[int, float]) -> dict[int, int] | None:
    """Channels of the share of every processor with which all end at the same time, as nearly as whole blocks allow.

    Args:
        channels: of the whole layer.
        seconds: time of the whole layer by processor, each above 0.

    Returns:
        By processor, ascending, the order of the shares; None if there are too few channels.
    """
    blocks = channels // CHANNELS
    speed = {processor: 1 / s for processor, s in seconds.items()}
    exact = {processor: blocks * s / sum(speed.values()) for processor, s in speed.items()}
    shares = {processor: max(1, int(share)) for processor, share in exact.items()}
    while sum(shares.values()) < blocks:
        shares[max(shares, key=lambda processor: exact[processor] - shares[processor])] += 1
    if sum(shares.values()) > blocks or len(shares) < 2:
        return None
    found = {processor: CHANNELS * shares[processor] for processor in sorted(shares)}
    found[max(found)] += channels % CHANNELS
    return found


def share_name(name: str, begin: int, end: int) -> str:
    """Name of a share of a layer or tensor."""
    return f"{name}[{begin}:{end}]"


def channels_of(tensor: TensorType, begin: int, end: int) -> TensorType:
    """The type of some channels of a tensor."""
    return replace(tensor, shape=(tensor.shape[0], end - begin, *tensor.shape[2:]))


def layer_share(layer: Layer, begin: int, end: int) -> Layer:
    """The layer that computes channels `begin` up to `end` of a divisible one. Weights are not copied."""
    inputs = list(layer.inputs)
    constants: dict[int, np.ndarray] = dict(layer.constants)
    for row in _ROWS if layer.op not in _POOLS else ():
        if layer.has(row):
            constants[row] = layer.constants[row][begin:end]
            inputs[row] = replace(layer.type_of(row), shape=constants[row].shape)
    for number in sliced_inputs(layer):
        inputs[number] = channels_of(layer.type_of(number), begin, end)
    attributes = {**layer.attributes, "groups": end - begin} if _is_depthwise(layer) else layer.attributes
    return replace(
        layer,
        name=share_name(layer.name, begin, end),
        inputs=tuple(inputs),
        outputs=(channels_of(layer.outputs[0], begin, end),),
        attributes=attributes,
        constants=constants,
    )


def slice_layer(name: str, tensor: TensorType, begin: int, end: int) -> Layer:
    """The layer that copies channels `begin` up to `end` of a tensor."""
    rank = len(tensor.shape)
    starts = (0, begin, *[0] * (rank - 2))
    return Layer(name, "Slice", (tensor,), (channels_of(tensor, begin, end),), {"starts": starts, "steps": (1,) * rank})


def concat_layer(name: str, shares: Sequence[TensorType]) -> Layer:
    """The layer that concatenates shares."""
    whole = channels_of(shares[0], 0, sum(share.shape[1] for share in shares))
    return Layer(name, "Concat", tuple(shares), (whole,), {"axis": 1})
