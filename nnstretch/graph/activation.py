"""Activations that layers can carry as their last step, and their numbering in kernels."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum


class ActivationKind(IntEnum):
    """Kinds of activation; the value is what kernels in C and OpenCL C switch on."""

    NONE = 0
    RELU = 1  # max(x, 0)
    CLIP = 2  # min(max(x, a), b); ReLU6 is CLIP(0, 6)
    SIGMOID = 3  # 1 / (1 + exp(-x))
    SILU = 4  # x * sigmoid(x)
    HARD_SIGMOID = 5  # min(max(a * x + b, 0), 1)
    HARD_SWISH = 6  # x * hard_sigmoid(x) with a = 1/6, b = 1/2
    LEAKY_RELU = 7  # x < 0 ? a * x : x
    TANH = 8
    EXP = 9  # e^x, but at most about the largest float32, and not 0
    GELU = 10  # x * (1 + erf(x / sqrt(2))) / 2
    GELU_TANH = 11  # x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3))) / 2
    SWISH = 12  # x * sigmoid(a * x)
    MISH = 13  # x * tanh(softplus(x))
    SOFTPLUS = 14  # ln(1 + e^x)
    ELU = 15  # x < 0 ? a * (e^(b * x) - 1) : x; CELU is ELU with b = 1 / a
    SELU = 16  # b * (x < 0 ? a * (e^x - 1) : x)
    ERF = 17


_ONE_CONSTANT = frozenset({ActivationKind.LEAKY_RELU, ActivationKind.SWISH})
_TWO_CONSTANTS = frozenset({ActivationKind.CLIP, ActivationKind.HARD_SIGMOID, ActivationKind.ELU, ActivationKind.SELU})


@dataclass(frozen=True)
class Activation:
    """An activation with its two constants `a` and `b` (meaning per kind; 0 where unused)."""

    kind: ActivationKind = ActivationKind.NONE
    a: float = 0.0
    b: float = 0.0

    def __str__(self) -> str:
        name = self.kind.name.lower()
        if self.kind in _TWO_CONSTANTS:
            return f"{name}({self.a:g},{self.b:g})"
        return f"{name}({self.a:g})" if self.kind in _ONE_CONSTANT else name

    def words(self) -> tuple[int, int, int]:
        """Kernel parameters: kind, then `a` and `b` as the bits of an IEEE-754 float32."""
        return int(self.kind), float_bits(self.a), float_bits(self.b)


NO_ACTIVATION = Activation()


def float_bits(value: float) -> int:
    """The bits of `value` as float32, as an unsigned integer: how kernels take float parameters."""
    return int.from_bytes(struct.pack("<f", value), "little")
