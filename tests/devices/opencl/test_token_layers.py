"""OpenCL's attention, products of matrices, reductions, pads and rearrangements against ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.devices.opencl.routines import Traits
from nnstretch.graph.activation import Activation
from nnstretch.graph.layer import Attribute, Layer
from tests.kits.kernels.token_layers import attention_layer, attention_layers, product_layer
from tests.kits.opencl.opencl_parity import ACTIVATIONS, RELU, check, check_setting, feeds_of, make_layer, numbers, some

pytestmark = pytest.mark.opencl
GPU = Traits(block=4, on_cpu=False, compute_units=2, registers=8)


@given(attention_layers())
@settings(some, max_examples=6)  # each is compiled for its width
def test_attention(processor: OpenCLProcessor, layer: Layer) -> None:
    check(processor, layer, {"attention"})


def test_attention_of_a_network_and_of_masked_keys(processor: OpenCLProcessor) -> None:
    check(processor, attention_layer((1, 4, 49, 49, 32, 32), heads=2, groups=2), {"attention"})
    mask = np.zeros((1, 1, 3, 40), np.float32)
    mask[..., :33] = -np.inf
    mask[..., 1, :] = 0
    layer = attention_layer((1, 1, 3, 40, 5, 7), heads=1, groups=1, biases=[mask])
    check(processor, layer, {"attention"})
    check(processor, layer, {"attention"}, traits=GPU)


def test_attention_of_cosines(processor: OpenCLProcessor) -> None:
    factor = np.array([0.5, 3.0], np.float32).reshape(1, 2, 1, 1)
    layer = attention_layer((1, 4, 11, 19, 7, 9), heads=2, groups=2, factor=factor, epsilon=1e-12)
    check(processor, layer, {"attention"})
    layer = attention_layer((1, 3, 5, 9, 7, 9), heads=2, groups=1, rows=True, factor=factor, epsilon=3.0)
    check(processor, layer, {"attention"}, traits=GPU)


@given(st.data())
@some
def test_matmul(processor: OpenCLProcessor, data: st.DataObject) -> None:
    m, k, n = (data.draw(st.integers(1, 40)) for _ in range(3))
    images = [data.draw(st.sampled_from([(), (3,), (1,), (2, 3), (2, 1), (1, 3)])) for _ in range(2)]
    transposed = data.draw(st.booleans()), data.draw(st.booleans())
    constant = data.draw(st.booleans())
    layer = product_layer((images[0], images[1]), (m, k, n), transposed=transposed, activation=RELU)
    if constant:
        values = {1: numbers(layer.type_of(1).shape)}
        layer = Layer(layer.name, layer.op, layer.inputs, layer.outputs, layer.attributes, layer.activation, values)
    check(processor, layer, {"matmul"})


def test_matmul_with_tiles_of_a_gpu(processor: OpenCLProcessor) -> None:
    for transposed in ((False, False), (False, True)):
        check(processor, product_layer(((2,), ()), (5, 9, 7), transposed=transposed), {"matmul"}, traits=GPU)


MODES = ("sum", "mean", "max", "min", "l1", "l2", "squares", "product")


@given(
    mode=st.sampled_from(MODES),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 20), st.integers(1, 5), st.integers(1, 18)),
    axes=st.sampled_from([(1,), (3,), (2, 3), (1, 2), (0, 1, 2, 3)]),
    keeps=st.booleans(),
    activation=st.sampled_from(ACTIVATIONS[:4]),
)
@settings(some, max_examples=40)
def test_reduce(
    processor: OpenCLProcessor,
    mode: str,
    shape: tuple[int, ...],
    axes: tuple[int, ...],
    keeps: bool,
    activation: Activation,
) -> None:
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(shape))
    output = kept if keeps else tuple(size for axis, size in enumerate(shape) if axis not in axes)
    check(processor, make_layer("Reduce", [shape], output, {"axes": axes, "mode": mode}, activation), {"reduce"})


@pytest.mark.parametrize("shape", [(1 << 18, 3), (1, 1 << 20)])
def test_sums_of_many_numbers(processor: OpenCLProcessor, shape: tuple[int, ...]) -> None:
    """Each of them added to one float, sums of positive numbers would be wrong in the third or fourth digit."""
    axis = max(range(2), key=lambda number: shape[number])
    result = tuple(size for number, size in enumerate(shape) if number != axis)
    layer = make_layer("Reduce", [shape], result, {"axes": (axis,), "mode": "squares"})
    wanted = np.square(feeds_of(layer)[0].astype(np.float64)).sum(axis)
    (routine,) = (routine for routine in processor.routines if routine.supports(layer))
    check_setting(processor, routine, layer, {}, wanted, tolerance=1e-5)


@given(
    mode=st.sampled_from(["constant", "reflect", "edge", "wrap"]),
    shape=st.tuples(st.integers(1, 2), st.integers(4, 20), st.integers(4, 6), st.integers(4, 9)),
    first=st.integers(0, 3),
    count=st.integers(1, 2),
    pads=st.tuples(*[st.integers(0, 3)] * 4),
    activation=st.sampled_from(ACTIVATIONS[:2]),
)
@settings(some, max_examples=40)
def test_pad(
    processor: OpenCLProcessor,
    mode: str,
    shape: tuple[int, ...],
    first: int,
    count: int,
    pads: tuple[int, ...],
    activation: Activation,
) -> None:
    axes = [2, 3] if count == 2 else [max(first, 1)]
    before, after = [0] * 4, [0] * 4
    for place, axis in enumerate(axes):
        before[axis], after[axis] = pads[place], pads[2 + place]
    output = tuple(b + size + a for b, size, a in zip(before, shape, after, strict=True))
    attributes: dict[str, Attribute] = {"pads": (*before, *after), "mode": mode, "value": 1.5}
    check(processor, make_layer("Pad", [shape], output, attributes, activation), {"pad"})


def test_windows_move_as_blocks(processor: OpenCLProcessor) -> None:
    """Four windows of 3 × 3 pixels become images."""
    attributes: dict[str, Attribute] = {"sizes": (1, 2, 3, 2, 3), "perm": (0, 1, 3, 2, 4)}
    layer = make_layer("Rearrange", [(1, 20, 6, 6)], (4, 20, 3, 3), attributes)
    check(processor, layer, {"move_blocks", "strided"})


@pytest.mark.parametrize("op", ["Div", "Max", "Min"])
@pytest.mark.parametrize("channels", [16, 20])
def test_further_arithmetic(processor: OpenCLProcessor, op: str, channels: int) -> None:
    shape = (2, channels, 3, 5)
    divisor = np.abs(numbers((1, channels, 1, 1))) + 0.5
    blocked = channels % processor.blocked.block == 0 or op != "Div"
    wanted = {"binary_broadcast"} | ({"binary_channel"} if blocked else set())
    check(processor, make_layer(op, [shape, divisor], shape, {}, RELU), wanted)
    if op != "Div":
        check(processor, make_layer(op, [shape, shape], shape), {"binary", "binary_broadcast"})
