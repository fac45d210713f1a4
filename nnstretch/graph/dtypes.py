"""Element types of tensors, in one table of their names, sizes and storage types, and quantization parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes  # noqa: F401  numpy knows bfloat16 by its name from it
import numpy as np

from nnstretch.errors import ModelError

Kind = Literal["float", "int", "bool", "complex", "opaque"]


@dataclass(frozen=True)
class ElementType:
    """What the elements of a tensor are and how arrays hold them.

    Attributes:
        name: as tensors, layouts and descriptors write it, e.g. "float32".
        code: its number in model files (`nns_dtype` of nnstretch.h); 0 for types that only external engines compute with.
        bytes: size of one element.
        kind: floating-point, integer, boolean, complex, or opaque (numpy has no such elements).
        storage: the numpy type of arrays of such elements: uint16 for the bits of bfloat16, uint8 for types narrower still.
    """

    name: str
    code: int
    bytes: int
    kind: Kind
    storage: np.dtype[Any]


_ONE_BYTE = (
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    *("float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn", "int4", "uint4", "int2", "uint2"),
)
"""Types of ONNX that only external engines compute with; arrays give each element a byte."""


_ROWS: tuple[tuple[str, int, Kind, Any], ...] = (
    ("float32", 1, "float", np.float32),
    ("float16", 2, "float", np.float16),
    ("bfloat16", 3, "float", np.uint16),
    ("float64", 4, "float", np.float64),
    ("int8", 5, "int", np.int8),
    ("uint8", 6, "int", np.uint8),
    ("int16", 7, "int", np.int16),
    ("uint16", 8, "int", np.uint16),
    ("int32", 9, "int", np.int32),
    ("uint32", 10, "int", np.uint32),
    ("int64", 11, "int", np.int64),
    ("uint64", 12, "int", np.uint64),
    ("bool", 13, "bool", np.bool_),
    *((name, 0, "opaque", np.uint8) for name in _ONE_BYTE),
    ("complex64", 0, "complex", np.complex64),
    ("complex128", 0, "complex", np.complex128),
    ("string", 0, "opaque", np.object_),
)
ELEMENT_TYPES = {
    name: ElementType(name, code, np.dtype(storage).itemsize, kind, np.dtype(storage))
    for name, code, kind, storage in _ROWS
}
"""By name."""

DEFAULT_DTYPE = "float32"
"""The type that networks are computed in unless they or the user say otherwise."""
FLOAT16 = "float16"
BFLOAT16 = "bfloat16"

CASTS = frozenset(
    {
        *((name, DEFAULT_DTYPE) for name in (FLOAT16, BFLOAT16, "uint8", "bool", "int32", "int64")),
        *((DEFAULT_DTYPE, name) for name in (FLOAT16, BFLOAT16, "uint8")),
    }
)
"""Types of the input and output of Cast layers."""


def element_type(name: str) -> ElementType:
    """The element type called `name`.

    Raises:
        ModelError: the table has none of that name.
    """
    found = ELEMENT_TYPES.get(name)
    if found is None:
        raise ModelError(f"unknown element type {name!r}; known are {', '.join(ELEMENT_TYPES)}")
    return found


LOWEST, HIGHEST = -128, 127
"""The integers of int8."""


@dataclass(frozen=True)
class QuantizationParameters:
    """An int8 `q` stands for `scale * (q - zero_point)`, in float32.

    Attributes:
        scale: the step from one number to the next; positive and finite, a float32 value.
        zero_point: the int8 that stands for 0.
    """

    scale: float
    zero_point: int = 0

    def quantize(self, values: np.ndarray | float) -> np.ndarray:
        """The int8 next to each value; of two that are as near the even one, as ONNX rounds. What is beyond is clipped."""
        with np.errstate(over="ignore"):  # infinities are clipped like the rest
            steps = np.rint(np.asarray(values, np.float32) / np.float32(self.scale)) + self.zero_point
        return np.asarray(np.clip(steps, LOWEST, HIGHEST), np.int8)

    def dequantize(self, integers: np.ndarray) -> np.ndarray:
        """What integers stand for, as float32."""
        steps = np.asarray(integers, np.float32) - np.float32(self.zero_point)
        return np.asarray(steps * np.float32(self.scale), np.float32)
