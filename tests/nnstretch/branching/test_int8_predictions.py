"""Predicted latencies of quantised networks."""

from __future__ import annotations

import math
from collections.abc import Collection

import pytest

from nnstretch.branching.latency.int8_predictions import Int8Predictor
from nnstretch.graph.layer import Layer, TensorType
from tests.kits.kernels.convolution_parity import conv_layer


class Counting:
    """A layer takes a second, and a pair as long as the test says; float32 takes ever so long."""

    def __init__(self, pair: float) -> None:
        self.pair = pair
        self.confirmed: list[Layer] = []

    def seconds(self, layers: list[Layer], processor: int) -> float:
        return float(sum(1 if layer.is_int8 else 100 for layer in layers))

    def fused_seconds(self, pair: Layer, processor: int) -> float:
        return self.pair

    def confirm(self, layers: list[Layer], processor: int) -> bool:
        self.confirmed += layers
        return False

    def meeting_seconds(self, tensor: TensorType, writers: Collection[int], readers: Collection[int]) -> float:
        return float(tensor.bytes)

    def fetch_seconds(self, tensor: TensorType, writers: Collection[int], readers: Collection[int]) -> float:
        return float(tensor.bytes)

    def contention_factor(self, processor: int, others: frozenset[int]) -> float:
        return 1.0


@pytest.mark.parametrize(("pair", "seconds"), [(1.25, 2.25), (3.0, 3.0), (math.inf, 3.0)])
def test_residuals_are_added_by_the_faster_way(pair: float, seconds: float) -> None:
    predictor = Counting(pair)
    layers = [conv_layer((1, 16, 6, 6), 16), conv_layer((1, 16, 6, 6), 16, residual=True)]
    int8 = Int8Predictor(predictor)
    assert int8.seconds(layers, 0) == pytest.approx(seconds)
    int8.confirm(layers, 0)
    assert [layer.op for layer in predictor.confirmed] == ["Conv", "Conv", "Add", "Chain"]


def test_rounded_tensors_are_passed_between_processors() -> None:
    tensor = TensorType((1, 8, 4, 4))
    assert Int8Predictor(Counting(1.0)).meeting_seconds(tensor, (0,), (1,)) == 8 * 4 * 4
