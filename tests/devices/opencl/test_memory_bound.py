"""OpenCL's dense, memory-bound and layout-change routines against ONNX Runtime, with every parameter setting."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.devices.base.routine import Layout, Routine, reorder_layer
from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.graph.activation import Activation
from nnstretch.graph.layer import Attribute, TensorType
from tests.kits.kernels.convolution_parity import reference
from tests.kits.opencl.opencl_driver import run_lowering
from tests.kits.opencl.opencl_parity import ACTIVATIONS, RELU, check, make_layer, numbers, some

pytestmark = pytest.mark.opencl


@given(
    n=st.sampled_from([1, 2, 4, 5]),
    inputs=st.sampled_from([1, 7, 8, 65, 130]),
    outputs=st.sampled_from([1, 10, 16, 33]),
    bias=st.booleans(),
    residual=st.booleans(),
    activation=st.sampled_from(ACTIVATIONS),
)
@some
def test_dense(
    processor: OpenCLProcessor, n: int, inputs: int, outputs: int, bias: bool, residual: bool, activation: Activation
) -> None:
    operands: list[np.ndarray | tuple[int, ...] | None] = [(n, inputs), numbers((outputs, inputs), 3)]
    operands.append(numbers((outputs,), 4) if bias else None)
    if residual:
        operands.append((n, outputs))
    check(processor, make_layer("Dense", operands, (n, outputs), {}, activation), {"dense"})


@given(
    n=st.integers(1, 3),
    channels=st.sampled_from([3, 16, 20]),
    height=st.integers(4, 9),
    width=st.integers(4, 17),
    kernel=st.tuples(st.integers(2, 3), st.integers(2, 3)),
    strides=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    pads=st.tuples(*[st.integers(0, 1)] * 4),
    op=st.sampled_from(["max", "dilated max", "average", "average with pads"]),
    activation=st.sampled_from(ACTIVATIONS[:3]),
)
@some
def test_pool(
    processor: OpenCLProcessor,
    n: int,
    channels: int,
    height: int,
    width: int,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    pads: tuple[int, int, int, int],
    op: str,
    activation: Activation,
) -> None:
    dilation = 2 if op == "dilated max" else 1
    attributes: dict[str, Attribute] = {"kernel": kernel, "strides": strides, "pads": pads}
    if op.endswith("max"):
        attributes["dilations"] = (dilation, dilation)
    else:
        attributes["count_include_pad"] = int(op == "average with pads")
    plane = (height + 1, width + 1)
    size = [(plane[i] + pads[i] + pads[i + 2] - dilation * (kernel[i] - 1) - 1) // strides[i] + 1 for i in (0, 1)]
    operator = "MaxPool" if op.endswith("max") else "AveragePool"
    layer = make_layer(operator, [(n, channels, *plane)], (n, channels, *size), attributes, activation)
    check(processor, layer, {"pool"})


@pytest.mark.parametrize("mode", ["average", "max"])
@pytest.mark.parametrize("shape", [(2, 20, 7, 7), (1, 16, 1, 3), (1, 3, 1, 1)])
def test_global_pool(processor: OpenCLProcessor, mode: str, shape: tuple[int, int, int, int]) -> None:
    layer = make_layer("GlobalPool", [shape], (*shape[:2], 1, 1), {"mode": mode}, RELU)
    check(processor, layer, {"global_pool"})


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("shape", [(2, 20, 5, 7), (3, 37), (5,)])
def test_activation(processor: OpenCLProcessor, activation: Activation, shape: tuple[int, ...]) -> None:
    check(processor, make_layer("Activation", [shape], shape, {}, activation), {"map"})


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
@pytest.mark.parametrize("shape", [(2, 20, 5, 7), (3, 37)])
def test_binary_of_equal_shapes(processor: OpenCLProcessor, op: str, shape: tuple[int, ...]) -> None:
    check(processor, make_layer(op, [shape, shape], shape, {}, RELU), {"binary", "binary_broadcast"})


@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
@pytest.mark.parametrize(
    "other",
    [(2, 20, 1, 1), (1, 20, 1, 1), numbers((1, 20, 1, 1)), numbers((20, 1, 1)), numbers((1,)), numbers(())],
    ids=["computed per image", "computed", "constant", "constant of rank 3", "one number", "scalar"],
)
def test_binary_per_channel(processor: OpenCLProcessor, op: str, other: np.ndarray | tuple[int, ...]) -> None:
    shape = (2, 20, 5, 7)
    layer = make_layer(op, [shape, other], shape, {}, RELU)
    check(processor, layer, {"binary_channel", "binary_broadcast"})


@pytest.mark.parametrize(
    ("x", "y", "output"),
    [
        ((2, 3, 4, 5), numbers((4, 1)), (2, 3, 4, 5)),
        (numbers((3, 1, 1)), (2, 3, 4, 5), (2, 3, 4, 5)),
        ((2, 1, 5), (3, 1), (2, 3, 5)),
        (numbers(()), (7,), (7,)),
        ((2, 1, 2, 3, 1, 2), (3, 1, 1, 4, 1), (2, 3, 2, 3, 4, 2)),
    ],
)
def test_binary_that_broadcasts(
    processor: OpenCLProcessor,
    x: np.ndarray | tuple[int, ...],
    y: np.ndarray | tuple[int, ...],
    output: tuple[int, ...],
) -> None:
    check(processor, make_layer("Sub", [x, y], output), {"binary_broadcast"})


@pytest.mark.parametrize("shape", [(2, 20, 5, 7), (1, 16, 1, 1)])
def test_affine(processor: OpenCLProcessor, shape: tuple[int, int, int, int]) -> None:
    layer = make_layer("Affine", [shape, numbers((shape[1],), 1), numbers((shape[1],), 2)], shape, {}, RELU)
    check(processor, layer, {"affine"})


@given(
    n=st.integers(1, 3),
    channels=st.lists(st.integers(1, 40), min_size=1, max_size=5),
    plane=st.tuples(st.integers(1, 4), st.integers(1, 9)),
    activation=st.sampled_from(ACTIVATIONS[:2]),
)
@settings(some, max_examples=25)
def test_concat_of_channels(
    processor: OpenCLProcessor, n: int, channels: list[int], plane: tuple[int, int], activation: Activation
) -> None:
    shapes = [(n, c, *plane) for c in channels]
    layer = make_layer("Concat", shapes, (n, sum(channels), *plane), {"axis": 1}, activation)
    check(processor, layer, {"concat_blocked", "concat_plain"})


@pytest.mark.parametrize(
    ("shapes", "axis", "output"),
    [
        ([(2, 3, 4, 5), (2, 3, 1, 5)], 2, (2, 3, 5, 5)),
        ([(3, 4), (3, 37), (3, 1)], 1, (3, 42)),
        ([(4,), (20,)], 0, (24,)),
    ],
)
def test_concat_along_other_axes(
    processor: OpenCLProcessor, shapes: list[tuple[int, ...]], axis: int, output: tuple[int, ...]
) -> None:
    check(processor, make_layer("Concat", shapes, output, {"axis": axis}), {"concat_plain"})


@pytest.mark.parametrize(("shape", "axis"), [((2, 1000), 1), ((3, 5, 7), 1), ((2, 20, 4, 3), 1), ((6,), 0)])
def test_softmax(processor: OpenCLProcessor, shape: tuple[int, ...], axis: int) -> None:
    check(processor, make_layer("Softmax", [shape], shape, {"axis": axis}), {"softmax"})


def test_softmax_of_large_values_is_finite(processor: OpenCLProcessor) -> None:
    x = np.array([[1e4, 1e4 - 1, -1e4], [-1e4, -1e4 - 1, -1e4 - 2]], np.float32)
    layer = make_layer("Softmax", [x.shape], x.shape, {"axis": 1})
    (routine,) = [routine for routine in processor.routines if routine.supports(layer)]
    for parameters in routine.parameter_space(layer):
        layouts, lowering = routine.layouts(layer, parameters), routine.lower(layer, parameters)
        (found,) = run_lowering(processor.runtime, lowering, layer, [x], *layouts)
        np.testing.assert_allclose(found, reference(layer, [x]), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("rms", [0, 1])
@pytest.mark.parametrize(("shape", "axis"), [((2, 37, 4, 5), 1), ((3, 7, 20), 2), ((2, 5, 3, 6), 3)])
def test_layer_norm(processor: OpenCLProcessor, shape: tuple[int, ...], axis: int, rms: int) -> None:
    attributes: dict[str, Attribute] = {"axis": axis, "epsilon": 1e-5, "rms": rms}
    layer = make_layer("LayerNorm", [shape, *[numbers(shape[axis : axis + 1])] * 2], shape, attributes, RELU)
    check(processor, layer, {"layer_norm", "layer_norm_blocked"} if axis == 1 else {"layer_norm"})


def test_prelu(processor: OpenCLProcessor) -> None:
    shape = (2, 35, 4, 5)
    check(processor, make_layer("PRelu", [shape, numbers((35,))], shape, {}, RELU), {"prelu"})


@pytest.mark.parametrize("groups", [1, 5, 35])
def test_group_norm(processor: OpenCLProcessor, groups: int) -> None:
    shape = (2, 35, 4, 5)
    layer = make_layer("GroupNorm", [shape, numbers((35,))], shape, {"groups": groups, "epsilon": 1e-5}, RELU)
    check(processor, layer, {"group_norm"})


@given(
    plane=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    scales=st.tuples(*[st.sampled_from([0.5, 0.75, 1.0, 1.6, 2.0, 3.0])] * 2),
    mode=st.sampled_from(["nearest", "linear"]),
    coordinates=st.sampled_from(["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]),
    nearest=st.sampled_from(["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"]),
)
@settings(some, max_examples=40)
def test_resize(
    processor: OpenCLProcessor,
    plane: tuple[int, int],
    scales: tuple[float, float],
    mode: str,
    coordinates: str,
    nearest: str,
) -> None:
    size = [max(1, math.floor(length * scale)) for length, scale in zip(plane, scales, strict=True)]
    exact = tuple(out / length for out, length in zip(size, plane, strict=True))
    attributes: dict[str, Attribute] = {
        "mode": mode,
        "coordinates": coordinates,
        "nearest": nearest,
        "scales": exact,
    }
    check(processor, make_layer("Resize", [(2, 20, *plane)], (2, 20, *size), attributes, RELU), {"resize"})


@pytest.mark.parametrize(("shape", "output"), [((2, 3, 4, 5), (2, 60)), ((24,), (2, 3, 4))])
def test_reshape(processor: OpenCLProcessor, shape: tuple[int, ...], output: tuple[int, ...]) -> None:
    check(processor, make_layer("Reshape", [shape], output, {}, RELU), {"copy"})


@pytest.mark.parametrize(
    ("shape", "order", "algorithms"),
    [
        ((2, 37, 5, 7), (0, 2, 3, 1), {"channels_last", "strided"}),
        ((2, 5, 7, 37), (0, 3, 1, 2), {"strided"}),
        ((3, 4, 5, 6, 7), (4, 2, 0, 3, 1), {"strided"}),
        ((7, 3), (1, 0), {"strided"}),
    ],
)
def test_transpose(
    processor: OpenCLProcessor, shape: tuple[int, ...], order: tuple[int, ...], algorithms: set[str]
) -> None:
    output = tuple(shape[axis] for axis in order)
    check(processor, make_layer("Transpose", [shape], output, {"perm": order}, RELU), algorithms)


def test_concat_with_a_constant(processor: OpenCLProcessor) -> None:
    layer = make_layer("Concat", [numbers((2, 1, 20)), (2, 5, 20)], (2, 6, 20), {"axis": 1}, RELU)
    check(processor, layer, {"concat_plain"})


def test_expand_and_tiles(processor: OpenCLProcessor) -> None:
    check(processor, make_layer("Expand", [(2, 5, 1, 1)], (2, 5, 3, 4), {}, RELU), {"strided"})
    attributes: dict[str, Attribute] = {"size": 2, "mode": "CRD"}
    check(processor, make_layer("DepthToSpace", [(1, 20, 3, 5)], (1, 5, 6, 10), attributes, RELU), {"strided"})
    check(processor, make_layer("SpaceToDepth", [(2, 5, 6, 4)], (2, 20, 3, 2), {"size": 2}, RELU), {"strided"})


@pytest.mark.parametrize(
    ("shape", "starts", "steps", "output", "algorithms"),
    [
        ((2, 37, 6, 5), (0, 0, 1, 0), (1, 1, 2, 1), (2, 20, 3, 5), {"move_blocks", "strided"}),
        ((2, 37, 6, 5), (0, 16, 0, 2), (1, 1, 1, 2), (2, 21, 6, 2), {"move_blocks", "strided"}),
        ((2, 37, 6, 5), (1, 3, 0, 0), (1, 2, 1, 1), (1, 17, 6, 5), {"strided"}),
        ((3, 40), (0, 4), (1, 1), (3, 36), {"strided"}),
    ],
)
def test_slice(
    processor: OpenCLProcessor,
    shape: tuple[int, ...],
    starts: tuple[int, ...],
    steps: tuple[int, ...],
    output: tuple[int, ...],
    algorithms: set[str],
) -> None:
    layer = make_layer("Slice", [shape], output, {"starts": starts, "steps": steps}, RELU)
    check(processor, layer, algorithms)


@given(
    n=st.integers(1, 3),
    channels=st.integers(1, 40),
    plane=st.tuples(st.integers(1, 5), st.integers(1, 20)),
    pair=st.sampled_from([(0, 1), (1, 0), (0, 0), (1, 1)]),
)
@settings(some, max_examples=20)
def test_reorder_moves_every_number_to_its_place(
    processor: OpenCLProcessor, n: int, channels: int, plane: tuple[int, int], pair: tuple[int, int]
) -> None:
    source, target = (processor.blocked if blocked else Layout(0) for blocked in pair)
    shape = (n, channels, *plane)
    layer = reorder_layer(TensorType(shape), source, target)
    routine: Routine = processor.reorder
    assert routine.supports(layer)
    values = numbers(shape)
    layouts_in, layouts_out = routine.layouts(layer, {})
    lowering = routine.lower(layer, {})
    (found,) = run_lowering(processor.runtime, lowering, layer, [values], layouts_in, layouts_out)
    assert np.array_equal(found, values)
    assert (layouts_in, layouts_out) == ((source,), (target,))
