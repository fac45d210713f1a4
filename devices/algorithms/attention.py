"""Sizes and strides of an Attention layer."""

from __future__ import annotations

from nnstretch.graph.layer import Layer

BIASES = (3, 4)
"""Inputs that are added to the scores."""
FACTOR = 5
"""Constant input by which the products of queries and keys are multiplied."""
OF_SCORES = (*BIASES, FACTOR)
"""Inputs beside queries, keys and values."""


def attention_biases(layer: Layer) -> tuple[int, ...]:
    """The biases that a layer has."""
    return tuple(index for index in BIASES if layer.has(index))


def attention_fits(layer: Layer) -> bool:
    """Whether kernels take the inputs.

    Queries, keys and values are computed at run time, factors are constant, and biases broadcast over images, heads and queries
    only.
    """
    if any(index in layer.constants for index in range(3)) or (layer.has(FACTOR) and FACTOR not in layer.constants):
        return False
    keys = attention_extents(layer)["keys"]
    return all(len(layer.type_of(i).shape) == 4 and layer.type_of(i).shape[-1] == keys for i in attention_biases(layer))


def attention_numbers(layer: Layer) -> tuple[float, float]:
    """The attributes `scale` and `epsilon`; the latter is 0 where queries and keys are not divided by their norms."""
    scale, epsilon = layer.attributes["scale"], layer.attributes.get("epsilon", 0.0)
    assert isinstance(scale, float | int)
    assert isinstance(epsilon, float | int)
    return float(scale), float(epsilon)


def attention_extents(layer: Layer) -> dict[str, int]:
    """Sizes as the kernels' parameters."""
    q, k, v = (layer.type_of(index).shape for index in range(3))
    heads, groups = layer.integer("heads"), layer.integer("groups")
    rows = len(q) == 3
    batch, windows, queries, keys = (q[0], 1, q[1], k[1]) if rows else (q[0], q[2], q[3], k[3])
    channel = 2 if rows else 1
    return {
        "batch": batch,
        "windows": windows,
        "heads": heads,
        "groups": groups,
        "queries": queries,
        "keys": keys,
        "depth": q[channel] // heads,
        "width": v[channel] // groups,
        "rows": int(rows),
    }


def factor_strides(layer: Layer) -> dict[str, int]:
    """Floats between images and heads of the factors as the kernels' parameters; 0 where one is repeated or absent."""
    images, heads = layer.type_of(FACTOR).shape[:2] if layer.has(FACTOR) else (1, 1)
    return {"factor_image": heads if images > 1 else 0, "factor_head": int(heads > 1)}


def bias_strides(layer: Layer) -> dict[str, int]:
    """Floats between images, heads and queries of both biases as the kernels' parameters; 0 where one is repeated or absent."""
    found: dict[str, int] = {}
    for index, name in zip(BIASES, ("bias", "mask"), strict=True):
        images, heads, queries, keys = layer.type_of(index).shape if layer.has(index) else (1, 1, 1, 1)
        found[f"{name}_image"] = heads * queries * keys if images > 1 else 0
        found[f"{name}_head"] = queries * keys if heads > 1 else 0
        found[f"{name}_query"] = keys if queries > 1 else 0
    return found
