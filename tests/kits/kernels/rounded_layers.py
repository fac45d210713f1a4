"""Convolutions whose products are of bfloat16 or float16, and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from nnstretch.graph.layer import Layer
from tests.kits.kernels.convolution_parity import feeds_of, reference
from tests.kits.kernels.convolution_shapes import convolutions

_kernels = st.tuples(st.integers(1, 4), st.integers(1, 4)) | st.just((1, 1))
_ungrouped = st.tuples(st.integers(1, 100), st.integers(1, 70), st.just(1))
_grouped = st.builds(
    lambda groups, inputs, outputs: (groups * inputs, groups * outputs, groups),
    st.integers(2, 5),
    st.sampled_from([12, 16, 23, 24, 32, 40, 75]),
    st.sampled_from([8, 12, 16, 17, 24, 40, 48]),
)
any_convolution = convolutions(_ungrouped | _grouped, _kernels)


Rounding = Callable[[np.ndarray], np.ndarray]


def rounded(numbers: np.ndarray) -> np.ndarray:
    """The nearest numbers of bfloat16, as float32."""
    return numbers.astype(ml_dtypes.bfloat16).astype(np.float32)


def rounded_to_float16(numbers: np.ndarray) -> np.ndarray:
    """The nearest numbers with the 11 bits of float16, and any exponent, as float32."""
    fractions, exponents = np.frexp(numbers)
    nearest: np.ndarray = np.ldexp(np.rint(fractions * 2048) / 2048, exponents)
    return nearest.astype(np.float32)


def reference_of_rounded(
    layer: Layer, feeds: Sequence[np.ndarray] | None = None, nearest: Rounding = rounded
) -> np.ndarray:
    """The output from inputs and weights that are rounded by `nearest`, as ONNX Runtime computes it in float32.

    Args:
        layer: the layer.
        feeds: inputs before they are rounded; None: `feeds_of(layer)`.
        nearest: rounds numbers.
    """
    return _of_rounded(layer, feeds_of(layer) if feeds is None else feeds, nearest)


def reference_of_pair(pair: Layer, rounded_part: int) -> np.ndarray:
    """The same of a pair in which one part, the pointwise convolution, has rounded operands."""
    (image, *others), (first, second) = feeds_of(pair), pair.parts
    of_first, of_second = (_of_rounded if rounded_part == part else reference for part in (0, 1))
    return of_second(second, [of_first(first, [image]), *others])


def _of_rounded(layer: Layer, feeds: Sequence[np.ndarray], nearest: Rounding = rounded) -> np.ndarray:
    image, *others = feeds
    constants: Mapping[int, np.ndarray] = {**layer.constants, 1: nearest(layer.constants[1])}
    return reference(replace(layer, constants=constants), [nearest(image), *others])
