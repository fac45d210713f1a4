"""Sizes and strides of an Attention layer."""

from __future__ import annotations

from nnstretch.graph.layer import Layer

BIASES = (3, 4)
"""Inputs that are added to the scores."""


def attention_biases(layer: Layer) -> tuple[int, ...]:
    """The biases that a layer has."""
    return tuple(index for index in BIASES if layer.has(index))


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


def bias_strides(layer: Layer) -> dict[str, int]:
    """Floats between images, heads and queries of both biases as the kernels' parameters; 0 where one is repeated or absent."""
    found: dict[str, int] = {}
    for index, name in zip(BIASES, ("bias", "mask"), strict=True):
        images, heads, queries, keys = layer.type_of(index).shape if layer.has(index) else (1, 1, 1, 1)
        found[f"{name}_image"] = heads * queries * keys if images > 1 else 0
        found[f"{name}_head"] = queries * keys if heads > 1 else 0
        found[f"{name}_query"] = keys if queries > 1 else 0
    return found
