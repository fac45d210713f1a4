"""Names of the parts of layers in plans: shares of channels, and bands of rows."""

from __future__ import annotations

import re

# What `nnstretch.graph.slices.share_name` and `nnstretch.graph.bands.band_name` append.
_PART = re.compile(r"\[(?:band \d+, rows )?(\d+):(\d+)\]")


def whole_name(layer: str) -> str:
    """Name of the layer that a share or band is part of; of any other layer its own."""
    return _PART.sub("", layer)


def part_size(layer: str) -> int:
    """The number of channels or rows of a share or band; 0 for a whole layer."""
    part = _PART.search(layer)
    return 0 if part is None else int(part[2]) - int(part[1])
