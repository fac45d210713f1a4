"""Calibration data of one value, from which no range of activations can be learned."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

_FEW = 4
"""Numbers of an input that may well be the same in all examples, such as the size of an image."""
_NAMED = 4
"""Channels that a warning names at most."""


class CalibrationWarning(UserWarning):
    """Calibration data that do not show what a network will see."""


def warn_of_constant_data(examples: Sequence[Mapping[str, np.ndarray]]) -> None:
    """Warns of inputs, and of channels of images and lines, that have one value in all examples.

    Args:
        examples: inputs of one run each, by name; one at least, with equal names.
    """
    found = list(_constant(examples))
    if found:
        warnings.warn(
            f"calibration data are constant: {'; '.join(found)}; ranges of activations fit no other data, so give examples "
            "such as the network will see: --data folder:photos, or a .npz file of real inputs",
            CalibrationWarning,
            stacklevel=4,
        )


def _constant(examples: Sequence[Mapping[str, np.ndarray]]) -> Iterator[str]:
    for name, first in examples[0].items():
        if first.dtype.kind != "f" or first.size <= _FEW:
            continue
        has_channels = first.ndim > 2
        axes = (0, *range(2, first.ndim)) if has_channels else None
        low = np.min([feed[name].min(axis=axes) for feed in examples], axis=0)
        high = np.max([feed[name].max(axis=axes) for feed in examples], axis=0)
        if np.min(low) == np.max(high):
            yield f"input {name!r} is {np.min(low):g} everywhere"
        elif has_channels and len(examples) * first[:, 0].size > 1:
            yield from _of_channels(name, np.flatnonzero(low == high))


def _of_channels(name: str, channels: np.ndarray) -> Iterator[str]:
    """The clause on an input with these constant channels."""
    if not len(channels):
        return
    places = ", ".join(map(str, channels[:_NAMED])) + (", …" if len(channels) > _NAMED else "")
    yield f"channel{'s' * (len(channels) > 1)} {places} of input {name!r} {'has' if len(channels) == 1 else 'have'} one value"
