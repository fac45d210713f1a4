"""Quantization parameters: the numbers that the integers of a quantized tensor stand for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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
