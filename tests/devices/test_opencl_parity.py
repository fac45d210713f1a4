"""Every OpenCL routine with every parameter setting against ONNX Runtime, on sizes around the edges of its tiles."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnstretch.devices.opencl.harness import run_lowering
from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.devices.opencl.routines import Traits, routines
from nnstretch.devices.opencl.routines.conv import Direct
from nnstretch.devices.opencl.routines.strassen import Strassen
from nnstretch.devices.opencl.routines.winograd import Winograd
from nnstretch.devices.routine import Layout, Routine, reorder_layer
from nnstretch.devices.spec import ProcessorSpec, usable_cores
from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.expand import expand
from nnstretch.graph.layer import Attribute, Layer, TensorType
from tests.devices.convolutions import conv_layer

pytestmark = pytest.mark.opencl

TOLERANCE = 1e-4  # of the range of the reference
RELU = Activation(ActivationKind.RELU)
ACTIVATIONS = (
    NO_ACTIVATION,
    RELU,
    Activation(ActivationKind.CLIP, 0.0, 6.0),
    Activation(ActivationKind.SIGMOID),
    Activation(ActivationKind.SILU),
    Activation(ActivationKind.HARD_SIGMOID, 0.2, 0.5),
    Activation(ActivationKind.HARD_SWISH),
    Activation(ActivationKind.LEAKY_RELU, 0.1),
    Activation(ActivationKind.TANH),
    Activation(ActivationKind.EXP),
)

some = settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def processor() -> OpenCLProcessor:
    return OpenCLProcessor(ProcessorSpec("opencl", 0, usable_cores()))


def make_layer(
    op: str,
    inputs: Sequence[np.ndarray | tuple[int, ...] | None],
    output: tuple[int, ...],
    attributes: Mapping[str, Attribute] | None = None,
    activation: Activation = NO_ACTIVATION,
) -> Layer:
    """A layer whose array inputs are constants and whose tuples are shapes of run-time inputs."""
    types = tuple(None if i is None else TensorType(i.shape if isinstance(i, np.ndarray) else i) for i in inputs)
    constants = {index: value for index, value in enumerate(inputs) if isinstance(value, np.ndarray)}
    return Layer(
        "layer", op, types, (TensorType(output),), MappingProxyType(dict(attributes or {})), activation, constants
    )


def numbers(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)


def reference(layer: Layer, inputs: Sequence[np.ndarray]) -> np.ndarray:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(expand(layer).SerializeToString(), options, providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {f"x{position}": value for position, value in enumerate(inputs)})
    return np.asarray(result)


def assert_close(found: np.ndarray, wanted: np.ndarray, what: str) -> None:
    assert found.shape == wanted.shape
    scale = max(float(wanted.max() - wanted.min()), float(np.abs(wanted).max()), 1e-6)
    error = float(np.abs(found - wanted).max()) / scale
    assert error <= TOLERANCE, f"{what}: {error:.1e} of the range"


def dense_algorithms(layer: Layer) -> set[str]:
    """Those that compute a convolution of blocked data, as the documents say."""
    channels, kernel = layer.type_of(0).shape[1], layer.type_of(1).shape[2:]
    groups = layer.attributes["groups"]
    assert isinstance(groups, int)
    plain = (kernel, layer.ints("strides"), layer.ints("dilations")) == ((3, 3), (1, 1), (1, 1))
    return {"direct", "winograd"} if plain and channels // groups >= 4 else {"direct"}


@st.composite
def pointwise_layers(draw: st.DrawFn) -> Layer:
    """Channels with and without a rest beside two halves; outputs that fill pairs of panels or leave single vectors."""
    shape = (
        draw(st.integers(1, 3)),
        draw(st.sampled_from([96, 97, 100, 112, 127, 128, 130, 160])),
        draw(st.integers(2, 9)),
        draw(st.integers(3, 15)),
    )
    return conv_layer(
        shape,
        draw(st.sampled_from([64, 72, 96, 100, 128, 161])),
        (1, 1),
        pads=(0, 0, 0, 0),
        bias=draw(st.booleans()),
        residual=draw(st.booleans()),
        activation=draw(st.sampled_from(ACTIVATIONS)),
    )


def check(
    processor: OpenCLProcessor,
    layer: Layer,
    algorithms: set[str],
    first_settings: int = 6,
    traits: Traits | None = None,
) -> None:
    """All routines that support the layer, which must be `algorithms` or Winograd's too, give what ONNX Runtime gives."""
    inputs = [numbers(layer.type_of(index).shape, seed=index + 1) for index in layer.activations]
    wanted = reference(layer, inputs)
    known = routines(traits) if traits else processor.routines
    supporting = [routine for routine in known if routine.supports(layer)]
    found = {routine.descriptor.algorithm for routine in supporting}
    assert algorithms <= found <= algorithms | {"winograd"}  # which strides and other kernels have where it is worth it
    for routine in supporting:
        for parameters in routine.parameter_space(layer)[:first_settings]:
            layouts_in, layouts_out = routine.layouts(layer, parameters)
            lowering = routine.lower(layer, parameters)
            (computed,) = run_lowering(processor.runtime, lowering, layer, inputs, layouts_in, layouts_out)
            assert_close(computed, wanted, f"{routine.descriptor} {dict(parameters)} {layer.workload}")


@pytest.mark.slow  # many builds where nothing is cached
@pytest.mark.parametrize(
    "layer",
    [
        conv_layer((1, 32, 9, 14), 32, activation=RELU),
        conv_layer((2, 20, 7, 15), 35, residual=True, activation=RELU),
        conv_layer((1, 16, 5, 29), 24, (1, 1), pads=(0, 0, 0, 0), residual=True),
    ],
    ids=["3x3", "3x3 odd channels, batch 2", "1x1"],
)
def test_direct_convolution_with_every_tile(processor: OpenCLProcessor, layer: Layer) -> None:
    check(processor, layer, dense_algorithms(layer))


@given(
    n=st.integers(1, 3),
    channels=st.sampled_from([9, 16, 17, 33]),
    out_channels=st.sampled_from([1, 16, 31, 48, 65]),
    height=st.integers(1, 6),
    width=st.integers(13, 30),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    vertical=st.tuples(st.integers(1, 3), st.integers(1, 2), st.integers(1, 2)),
    residual=st.booleans(),
    activation=st.sampled_from(ACTIVATIONS),
)
@some
def test_direct_convolution_of_awkward_sizes(
    processor: OpenCLProcessor,
    n: int,
    channels: int,
    out_channels: int,
    height: int,
    width: int,
    pads: tuple[int, int, int, int],
    vertical: tuple[int, int, int],
    residual: bool,
    activation: Activation,
) -> None:
    kernel_h, stride_h, dilation_h = vertical
    height = max(height, dilation_h * (kernel_h - 1) + 1)
    layer = conv_layer(
        (n, channels, height, width),
        out_channels,
        (kernel_h, 3),
        (stride_h, 1),
        pads,
        (dilation_h, 1),
        residual=residual,
        activation=activation,
    )
    check(processor, layer, dense_algorithms(layer), first_settings=1)


@pytest.mark.parametrize(
    ("kernel", "strides", "dilations", "pads"),
    [
        ((3, 3), (2, 2), (1, 1), (0, 0, 1, 1)),
        ((5, 5), (1, 2), (1, 1), (2, 1, 2, 3)),
        ((3, 3), (1, 1), (2, 3), (2, 3, 2, 3)),
        ((1, 1), (2, 2), (1, 1), (0, 0, 0, 0)),
        ((1, 1), (1, 1), (1, 1), (1, 0, 0, 2)),
        ((1, 7), (1, 1), (1, 1), (0, 3, 0, 3)),
        ((7, 1), (1, 1), (1, 1), (3, 0, 3, 0)),
    ],
)
def test_direct_convolution_kernels_strides_dilations(
    processor: OpenCLProcessor,
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    pads: tuple[int, int, int, int],
) -> None:
    layer = conv_layer((2, 20, 11, 19), 33, kernel, strides, pads, dilations, residual=True, activation=RELU)
    check(processor, layer, dense_algorithms(layer), first_settings=1)


@pytest.mark.parametrize(
    ("channels", "out_channels", "groups"),
    [(72, 72, 3), (48, 96, 3), (64, 64, 2), (12, 20, 4), (10, 30, 5), (34, 6, 2), (8, 24, 8), (40, 8, 8)],
)
def test_grouped_convolution(processor: OpenCLProcessor, channels: int, out_channels: int, groups: int) -> None:
    layer = conv_layer((2, channels, 5, 15), out_channels, groups=groups, activation=RELU)
    check(processor, layer, dense_algorithms(layer), first_settings=2)


@pytest.mark.parametrize(("channels", "groups"), [(72, 3), (48, 2), (80, 2), (16, 2), (112, 2)])
@pytest.mark.parametrize(("stride", "activation"), [(2, ACTIVATIONS[4]), (1, ACTIVATIONS[2])])
def test_groups_that_end_within_a_block_by_half_vectors(
    processor: OpenCLProcessor, channels: int, groups: int, stride: int, activation: Activation
) -> None:
    strides = (stride, stride)
    layer = conv_layer(
        (2, channels, 7, 17), channels, strides=strides, groups=groups, residual=True, activation=activation
    )
    routine = Direct(replace(processor.runtime.traits, block=16, registers=32))
    halves = [parameters for parameters in routine.parameter_space(layer) if "length" in parameters]
    assert [parameters["length"] for parameters in halves] == [8]
    check_setting(processor, layer, halves[0], routine)


@given(
    n=st.integers(1, 3),
    channels=st.sampled_from([4, 9, 16, 33]),
    out_channels=st.sampled_from([1, 16, 31, 48]),
    plane=st.tuples(st.integers(1, 13), st.integers(1, 13)),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    residual=st.booleans(),
    activation=st.sampled_from(ACTIVATIONS),
    setting=st.sampled_from([(2, 7, 2), (4, 7, 1), (6, 3, 2)]),
)
@some
def test_winograd_of_awkward_sizes(
    processor: OpenCLProcessor,
    n: int,
    channels: int,
    out_channels: int,
    plane: tuple[int, int],
    pads: tuple[int, int, int, int],
    residual: bool,
    activation: Activation,
    setting: tuple[int, int, int],
) -> None:
    height, width = (max(size, 3) for size in plane)
    m, tiles, blocks = setting
    layer = conv_layer((n, channels, height, width), out_channels, pads=pads, residual=residual, activation=activation)
    check_setting(processor, layer, {"alpha": m + 2, "taps": 3, "tiles": tiles, "block": tiles * blocks})


@pytest.mark.parametrize(
    ("kernel", "stride", "transform"),
    [
        (2, 1, (6, 2)),
        (2, 1, (4, 2)),
        (3, 1, (4, 2)),
        (3, 2, (4, 2)),
        (3, 2, (6, 2)),
        (4, 2, (6, 2)),
        (4, 1, (6, 4)),
        (5, 1, (6, 3)),
        (5, 1, (8, 5)),
        (5, 2, (8, 3)),
        (6, 1, (8, 6)),
        (7, 2, (8, 4)),
        (7, 1, (8, 4)),
    ],
)
@pytest.mark.parametrize("on_cpu", [True, False])
def test_winograd_of_kernels_that_are_divided(
    processor: OpenCLProcessor, kernel: int, stride: int, transform: tuple[int, int], on_cpu: bool
) -> None:
    pads = (kernel // 2, (kernel - 1) // 2, (kernel - 1) // 2, kernel // 2)
    layer = conv_layer(
        (2, 36, 17, 13), 50, (kernel,) * 2, (stride,) * 2, pads, groups=2, residual=True, activation=ACTIVATIONS[2]
    )
    alpha, taps = transform
    routine = Winograd(processor.runtime.traits if on_cpu else replace(processor.runtime.traits, on_cpu=False))
    check_setting(processor, layer, {"alpha": alpha, "taps": taps, "tiles": 5, "block": 10}, routine)


@pytest.mark.parametrize(
    ("kernel", "stride", "transform"), [(7, 2, (8, 4)), (3, 1, (6, 3)), (3, 2, (6, 2)), (5, 1, (8, 5))]
)
@pytest.mark.parametrize(("channels", "pads"), [(3, (3, 2, 1, 4)), (1, (0, 0, 0, 0))])
@pytest.mark.parametrize("on_cpu", [True, False])
def test_winograd_of_plain_tensors_of_few_channels(
    processor: OpenCLProcessor,
    kernel: int,
    stride: int,
    transform: tuple[int, int],
    channels: int,
    pads: tuple[int, int, int, int],
    on_cpu: bool,
) -> None:
    layer = conv_layer((2, channels, 17, 22), 20, (kernel,) * 2, (stride,) * 2, pads, residual=True, activation=RELU)
    alpha, taps = transform
    routine = Winograd(replace(processor.runtime.traits, on_cpu=on_cpu))
    check_setting(processor, layer, {"alpha": alpha, "taps": taps, "tiles": 5, "block": 10}, routine)


def test_winograd_is_tried_where_it_is_worth_it(processor: OpenCLProcessor) -> None:
    mine = Winograd(processor.runtime.traits)
    assert mine.supports(conv_layer((1, 128, 56, 56), 128, strides=(2, 2)))
    assert mine.supports(conv_layer((1, 64, 28, 28), 64, (5, 5), pads=(2, 2, 2, 2)))
    first = conv_layer((1, 3, 224, 224), 64, (7, 7), (2, 2), (3, 3, 3, 3))
    assert mine.supports(first)
    assert mine.layouts(first, mine.parameter_space(first)[0])[0] == (Layout(0),)
    assert not Winograd(processor.runtime.traits, "float16").supports(first)
    assert not mine.supports(conv_layer((1, 512, 7, 7), 512, strides=(2, 2)))  # its weights come from memory
    assert not mine.supports(conv_layer((1, 128, 56, 56), 128, strides=(2, 1)))
    assert not mine.supports(conv_layer((1, 128, 56, 56), 128, (3, 1), pads=(1, 0, 1, 0)))
    assert not mine.supports(conv_layer((1, 128, 56, 56), 128, pads=(2, 2, 2, 2), dilations=(2, 2)))
    assert not mine.supports(conv_layer((1, 128, 56, 56), 128, groups=64))


@pytest.mark.parametrize("size", [3, 5, 7, 9, 14])
@pytest.mark.parametrize("m", [2, 4, 6])
def test_winograd_of_an_image_that_is_one_register_tile(processor: OpenCLProcessor, m: int, size: int) -> None:
    layer = conv_layer((1, 20, size, size + 1), 20, residual=True, activation=RELU)
    tiles = -(-size // m) * -(-(size + 1) // m)
    check_setting(processor, layer, {"alpha": m + 2, "taps": 3, "tiles": tiles, "block": tiles})


@pytest.mark.parametrize("units", [1, 2, 5])
def test_winograd_shared_by_several_work_items(processor: OpenCLProcessor, units: int) -> None:
    layer = conv_layer((1, 24, 13, 11), 90, groups=2, residual=True, activation=ACTIVATIONS[2])
    routine = Winograd(replace(processor.runtime.traits, compute_units=units))
    check_setting(processor, layer, {"alpha": 6, "taps": 3, "tiles": 6, "block": 6}, routine)


def check_setting(
    processor: OpenCLProcessor, layer: Layer, parameters: Mapping[str, int], routine: Routine | None = None
) -> None:
    """A routine, Winograd's if no other, gives with these parameters what ONNX Runtime gives."""
    routine = routine or Winograd(processor.runtime.traits)
    inputs = [numbers(layer.type_of(index).shape, seed=index + 1) for index in layer.activations]
    layouts_in, layouts_out = routine.layouts(layer, parameters)
    lowering = routine.lower(layer, parameters)
    (found,) = run_lowering(processor.runtime, lowering, layer, inputs, layouts_in, layouts_out)
    assert_close(found, reference(layer, inputs), f"{dict(parameters)} {layer.workload}")


@given(layer=pointwise_layers(), units=st.sampled_from([1, 2, 5]), tiles=st.integers(1, 3))
@some
def test_strassen_of_awkward_sizes(processor: OpenCLProcessor, layer: Layer, units: int, tiles: int) -> None:
    routine = Strassen(replace(processor.runtime.traits, compute_units=units))
    assert routine.supports(layer)
    for parameters in routine.parameter_space(layer):
        check_setting(processor, layer, {**parameters, "tiles": tiles}, routine)


def test_strassen_leaves_other_layers_to_others(processor: OpenCLProcessor) -> None:
    mine, plain = Strassen(processor.runtime.traits), (0, 0, 0, 0)
    assert mine.supports(conv_layer((1, 128, 8, 8), 128, (1, 1), pads=plain))
    assert not mine.supports(conv_layer((1, 128, 8, 8), 128, (3, 3)))
    assert not mine.supports(conv_layer((1, 128, 8, 8), 128, (1, 1), pads=plain, strides=(2, 2)))
    assert not mine.supports(conv_layer((1, 128, 8, 8), 128, (1, 1), pads=(1, 1, 1, 1)))
    assert not mine.supports(conv_layer((1, 128, 8, 8), 128, (1, 1), pads=plain, groups=2))
    assert not mine.supports(conv_layer((1, 16, 8, 8), 128, (1, 1), pads=plain))
    assert not mine.supports(conv_layer((1, 128, 8, 8), 16, (1, 1), pads=plain))
    assert not mine.supports(conv_layer((1, 128, 1, 1), 128, (1, 1), pads=plain))
    elsewhere = Strassen(replace(processor.runtime.traits, on_cpu=False))
    assert not elsewhere.supports(conv_layer((1, 128, 8, 8), 128, (1, 1), pads=plain))


@pytest.mark.parametrize("channels", [1, 3, 4, 8])
@pytest.mark.parametrize("out_channels", [16, 33])
def test_planar_convolution(processor: OpenCLProcessor, channels: int, out_channels: int) -> None:
    layer = conv_layer((2, channels, 12, 37), out_channels, (7, 7), (2, 2), (3, 2, 3, 4), residual=True)
    check(processor, layer, {"planar", "direct"}, first_settings=1)


@pytest.mark.slow  # many builds where nothing is cached
def test_planar_convolution_with_every_tile(processor: OpenCLProcessor) -> None:
    check(processor, conv_layer((1, 3, 30, 30), 40, activation=RELU), {"planar", "direct"})


@given(
    n=st.integers(1, 3),
    channels=st.sampled_from([9, 16, 17, 40]),
    height=st.integers(3, 6),
    width=st.integers(13, 30),
    pads=st.tuples(*[st.integers(0, 2)] * 4),
    vertical=st.sampled_from([(3, 1, 1), (3, 2, 1), (2, 1, 2), (5, 1, 1)]),
    residual=st.booleans(),
    activation=st.sampled_from(ACTIVATIONS),
)
@some
def test_depthwise_convolution(
    processor: OpenCLProcessor,
    n: int,
    channels: int,
    height: int,
    width: int,
    pads: tuple[int, int, int, int],
    vertical: tuple[int, int, int],
    residual: bool,
    activation: Activation,
) -> None:
    kernel_h, stride_h, dilation_h = vertical
    height = max(height, dilation_h * (kernel_h - 1) + 1)
    layer = conv_layer(
        (n, channels, height, width),
        channels,
        (kernel_h, 3),
        (stride_h, 1),
        pads,
        (dilation_h, 1),
        channels,
        residual=residual,
        activation=activation,
    )
    check(processor, layer, {"depthwise", "direct"}, first_settings=1)


@pytest.mark.slow  # many builds where nothing is cached
@pytest.mark.parametrize(("kernel", "stride", "dilation"), [(3, 2, 1), (5, 1, 1), (3, 1, 2)])
def test_depthwise_convolution_with_every_tile(
    processor: OpenCLProcessor, kernel: int, stride: int, dilation: int
) -> None:
    reach = dilation * (kernel - 1)
    pads = (reach // 2, reach // 2, reach - reach // 2, reach - reach // 2)
    layer = conv_layer((2, 24, 9, 23), 24, (kernel,) * 2, (stride,) * 2, pads, (dilation,) * 2, 24)
    routine = next(r for r in processor.routines if r.descriptor.algorithm == "depthwise")
    assert len(routine.parameter_space(layer)) > 2
    check(processor, layer, {"depthwise", "direct"})


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


@pytest.mark.parametrize(
    ("shape", "starts", "steps", "output", "algorithms"),
    [
        ((2, 37, 6, 5), (0, 0, 1, 0), (1, 1, 2, 1), (2, 20, 3, 5), {"slice_blocked", "strided"}),
        ((2, 37, 6, 5), (0, 16, 0, 2), (1, 1, 1, 2), (2, 21, 6, 2), {"slice_blocked", "strided"}),
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
    routine: Routine = processor.reorder()
    assert routine.supports(layer)
    values = numbers(shape)
    layouts_in, layouts_out = routine.layouts(layer, {})
    lowering = routine.lower(layer, {})
    (found,) = run_lowering(processor.runtime, lowering, layer, [values], layouts_in, layouts_out)
    assert np.array_equal(found, values)
    assert (layouts_in, layouts_out) == ((source,), (target,))


GPU = Traits(block=16, on_cpu=False, compute_units=4, registers=4)


@pytest.mark.parametrize(
    "traits",
    [
        Traits(block=4, on_cpu=True, compute_units=3, registers=32),
        Traits(block=8, on_cpu=True, compute_units=1, registers=16),
        GPU,
        replace(GPU, block=4, registers=16),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("layer", "algorithms"),
    [
        (conv_layer((2, 10, 5, 17), 21, residual=True, activation=ACTIVATIONS[4]), {"direct", "winograd"}),
        (conv_layer((1, 36, 5, 9), 36, groups=3), {"direct", "winograd"}),
        (conv_layer((1, 3, 9, 9), 10, strides=(2, 2)), {"planar", "direct"}),
        (conv_layer((1, 10, 9, 9), 10, groups=10), {"depthwise", "direct"}),
        (make_layer("Dense", [(2, 13), numbers((9, 13))], (2, 9)), {"dense"}),
        (
            make_layer("Concat", [(1, 5, 3, 3), (1, 6, 3, 3)], (1, 11, 3, 3), {"axis": 1}),
            {"concat_blocked", "concat_plain"},
        ),
        (make_layer("Activation", [(1, 5, 3, 3)], (1, 5, 3, 3), {}, RELU), {"map"}),
        (make_layer("Affine", [(1, 5, 3, 3), numbers((5,)), numbers((5,))], (1, 5, 3, 3)), {"affine"}),
        (make_layer("GlobalPool", [(2, 5, 3, 3)], (2, 5, 1, 1), {"mode": "average"}), {"global_pool"}),
        (make_layer("Softmax", [(2, 5)], (2, 5), {"axis": 1}), {"softmax"}),
        (
            make_layer("Transpose", [(2, 21, 3, 4)], (2, 3, 4, 21), {"perm": (0, 2, 3, 1)}),
            {"channels_last", "strided"},
        ),
        (
            make_layer("Slice", [(2, 21, 3, 4)], (2, 5, 3, 4), {"starts": (0, 16, 0, 0), "steps": (1, 1, 1, 1)}),
            {"slice_blocked", "strided"},
        ),
    ],
    ids=lambda value: value.op if isinstance(value, Layer) else "",
)
def test_other_blocks_and_devices(
    processor: OpenCLProcessor, layer: Layer, algorithms: set[str], traits: Traits
) -> None:
    check(processor, layer, algorithms, first_settings=1, traits=traits)
