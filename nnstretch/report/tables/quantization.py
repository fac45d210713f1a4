"""What became of a network in int8, as tables and lines for terminals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from nnstretch.report.tables.text import count_text, plain_table

if TYPE_CHECKING:
    from rich.table import Table

    from nnstretch.quantization import LayerError, RoundedLayer

_NAMED = 12
"""Layers that a line names."""


def floating_text(layers: Sequence[str]) -> str:
    """A line with the names of the layers that compute in float32; "" if there are none."""
    if not layers:
        return ""
    more = len(layers) - _NAMED
    return f"in float32: {', '.join(layers[:_NAMED])}" + (f" and {more} more (--json names all)" if more > 0 else "")


def sensitivity_table(layers: Sequence[LayerError], floating: Sequence[str]) -> Table:
    """The error of the outputs that every layer causes, the largest first; `floating` computes in float32 all the same."""
    shown = plain_table("layer", "operator", ">output error", ">dB", "computes in")
    for layer in layers:
        where = "float32" if layer.name in floating else "int8"
        shown.add_row(layer.name, layer.operator, f"{layer.error:.2e}", f"{layer.snr_db:.1f}", where)
    shown.caption = "output error: of the network in which only this layer is in int8, relative to its float32 outputs"
    return shown


def rounding_table(layers: Sequence[RoundedLayer]) -> Table:
    """What adaptive rounding changed in every layer, in the order of the network."""
    shown = plain_table("layer", "operator", ">error, nearest", ">error, adaptive", ">weights changed")
    for layer in layers:
        errors = f"{layer.nearest:.2e}", f"{layer.error:.2e}"
        shown.add_row(layer.name, layer.operator, *errors, count_text(layer.changed))
    shown.caption = "error of a layer's outputs with its weights rounded to the nearest integers, and adaptively"
    return shown
