"""Memory-bound int8 routines against exact arithmetic in numpy: every layout and block, uneven sizes, extreme parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.devices.cpu.routines.memory_bound import MemoryBoundRoutine
from nnstretch.devices.engine.binding.library import Engine
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.dtypes import HIGHEST, LOWEST, QuantizationParameters
from nnstretch.graph.layer import Attribute, Layer, TensorType, fused_layer
from nnstretch.graph.reference import run_layer
from tests.kits.boards.cores import OWN_CORE
from tests.kits.hypothesis_examples import examples
from tests.kits.kernels.convolution_parity import ACTIVATIONS
from tests.kits.kernels.cpu_features import runnable_isas, variant_masks
from tests.kits.kernels.cpu_routines import memory_bound_routines
from tests.kits.kernels.int8_layers import typed_layer
from tests.kits.kernels.kernel_driver import run_lowering

BLOCKS = (4, 8, 16)
TABLES = [(isa, mask) for isa in runnable_isas() for mask in variant_masks(isa, "int8") if mask in ("", "-avx512vbmi")]
CORES = ((OWN_CORE,), (OWN_CORE, OWN_CORE))
Shape = tuple[int, ...]
RELU, CLIP = Activation(ActivationKind.RELU), Activation(ActivationKind.CLIP, -0.5, 1.25)

scales = st.floats(2.0**-10, 8.0, width=32)
zero_points = st.sampled_from([LOWEST, -3, 0, 11, HIGHEST])
parameters = st.builds(QuantizationParameters, scales, zero_points)
batches, channels, sizes = st.integers(1, 2), st.integers(1, 35), st.integers(1, 9)
A = QuantizationParameters(0.0625, 3)
B = QuantizationParameters(float(np.float32(0.03)), -7)


def int8(shape: Shape, quantization: QuantizationParameters) -> TensorType:
    return TensorType(shape, "int8", quantization)


def integers(shape: Shape, seed: int = 0) -> np.ndarray:
    """Random int8, with both ends among them."""
    found = np.random.default_rng(seed).integers(LOWEST, HIGHEST, shape, np.int8, endpoint=True)
    found.reshape(-1)[:2] = (LOWEST, HIGHEST)[: found.size]
    return found


def real(array: np.ndarray, tensor: TensorType) -> np.ndarray:
    """What integers stand for, in double precision."""
    assert tensor.quantization is not None
    return (array.astype(np.float64) - tensor.quantization.zero_point) * tensor.quantization.scale


@pytest.fixture(scope="module", params=TABLES, ids=[f"{isa.name}{mask}" for isa, mask in TABLES])
def variant(request: pytest.FixtureRequest) -> tuple[Isa, str]:
    """Each instruction set in turn, and the features to hide so that each variant of the tables is chosen once."""
    isa, mask = request.param
    return isa, mask


def test_tables_of_every_variant(isa: Isa, native: Engine) -> None:
    """All integers, in vectors and in what is left of one."""
    assert native.block == isa.block
    for count in (3, 64, 321):
        layer = typed_layer("Activation", [int8((1, count), A)], int8((1, count), B), activation=ACTIVATIONS[-1])
        values = np.roll(np.arange(count, dtype=np.int64) % 256 - 128, count // 2).astype(np.int8).reshape(1, count)
        (routine,) = [r for r in memory_bound_routines(isa.block) if r.supports(layer)]
        setting = routine.parameter_space(layer)[0]
        lowering, layouts = routine.lower(layer, setting), routine.layouts(layer, setting)
        (table,) = lowering.constants
        (found,) = run_lowering(lowering, layer, [values], *layouts)
        assert isinstance(table, np.ndarray)
        assert np.array_equal(found, table[values.astype(int) + 128])


def results(layer: Layer, feeds: Sequence[np.ndarray]) -> list[tuple[str, np.ndarray]]:
    """Results of all routines, layouts and numbers of threads, with their names."""
    found: list[tuple[str, np.ndarray]] = []
    for block in BLOCKS:
        routines: list[MemoryBoundRoutine] = [r for r in memory_bound_routines(block) if r.supports(layer)]
        assert routines
        assert {r.descriptor.dtype for r in routines} == {"int8"}
        for routine, setting in ((r, setting) for r in routines for setting in r.parameter_space(layer)):
            lowering, (inputs, outputs) = routine.lower(layer, setting), routine.layouts(layer, setting)
            for cores in CORES:
                (one,) = run_lowering(lowering, layer, feeds, inputs, outputs, cores)
                found.append((f"{routine.descriptor} {dict(setting)} {cores}", one))
    return found


def check(layer: Layer, feeds: Sequence[np.ndarray], wanted: np.ndarray) -> None:
    """Compares results with the exact numbers `wanted`: they are the nearest integers, but near a tie one of two."""
    result = layer.outputs[0].quantization
    assert result is not None
    low, high = LOWEST, HIGHEST
    if layer.activation.kind is ActivationKind.RELU:
        low = int(result.quantize(0.0))
    elif layer.activation.kind is ActivationKind.CLIP:
        low, high = int(result.quantize(layer.activation.a)), int(result.quantize(layer.activation.b))
    steps = wanted / result.scale + result.zero_point
    expected = np.clip(np.rint(steps), low, high).astype(np.int32)
    near_a_tie = np.abs(steps - np.floor(steps) - 0.5) < 2e-4 * np.maximum(1, np.abs(wanted / result.scale) / 64)
    for name, found in results(layer, feeds):
        difference = np.abs(found.astype(np.int32) - expected)
        assert difference.max(initial=0) <= 1, name
        assert not difference[~near_a_tie].any(), name


@pytest.mark.parametrize(
    "shape",
    [(), (5,), (2, 19, 7, 5), (1, 16, 70, 70), (2, 3, 7, 9), (1, 3, 40, 41), (2, 4, 9, 9), (1, 1, 1, 3)],
    ids=str,
)
def test_quantize_is_exact(shape: Shape) -> None:
    feed = np.random.default_rng(1).uniform(-20, 20, shape).astype(np.float32)
    if feed.size > 8:
        feed.reshape(-1)[:8] = [np.inf, -np.inf, 3e38, -3e38, 1.5 * A.scale, 2.5 * A.scale, -0.0, 1e-30]
    layer = typed_layer("Quantize", [TensorType(shape)], int8(shape, A))
    for name, found in results(layer, [feed]):
        np.testing.assert_array_equal(found, A.quantize(feed), name)


def test_what_is_not_a_number_becomes_an_integer() -> None:
    feed = np.full((1, 17), np.nan, np.float32)
    for _, found in results(typed_layer("Quantize", [TensorType((1, 17))], int8((1, 17), A)), [feed]):
        assert (found == LOWEST).all()


@pytest.mark.parametrize("shape", [(), (5,), (2, 19, 7, 5), (1, 16, 70, 70)], ids=str)
def test_dequantize_is_exact(shape: Shape) -> None:
    feed = integers(shape)
    for name, found in results(typed_layer("Dequantize", [int8(shape, B)], TensorType(shape)), [feed]):
        np.testing.assert_array_equal(found, B.dequantize(feed), name)


@given(parameters, parameters, channels)
@settings(max_examples=examples(15))
def test_other_parameters(source: QuantizationParameters, result: QuantizationParameters, c: int) -> None:
    kind = int8((1, c, 5, 7), source)
    check(
        typed_layer("Quantize", [kind], int8(kind.shape, result)),
        [integers(kind.shape)],
        real(integers(kind.shape), kind),
    )


@pytest.mark.parametrize("activation", [*ACTIVATIONS, Activation(ActivationKind.EXP)], ids=str)
def test_activation(activation: Activation) -> None:
    shape = (1, 18, 3, 5)
    layer, feed = typed_layer("Activation", [int8(shape, A)], int8(shape, B), None, activation), integers(shape)
    (wanted,) = run_layer(layer, feed)
    for name, found in results(layer, [feed]):
        assert np.abs(np.subtract(found, wanted, dtype=np.int32)).max() <= 1, name


def gate(shape: Shape, activation: Activation) -> Layer:
    """x times its activation, each of which is rounded."""
    x, factor, result = int8(shape, A), int8(shape, QuantizationParameters(1 / 256, LOWEST)), int8(shape, B)
    return fused_layer(
        (typed_layer("Activation", [x], factor, None, activation), typed_layer("Mul", [x, factor], result)),
        ((0,), (0, -1)),
    )


def gelu(shape: Shape) -> Layer:
    """A GELU spelt out: its steps are computed in float32 and rounded."""

    def affine(scale: float, shift: float, kind: ActivationKind) -> Layer:
        constants = {i: np.full(shape[1], value, np.float32) for i, value in ((1, scale), (2, shift))}
        types = [TensorType(shape), *(TensorType(constant.shape) for constant in constants.values())]
        made = typed_layer("Affine", types, TensorType(shape), None, Activation(kind))
        return replace(made, constants=MappingProxyType(constants))

    x, erf, more, result = (
        int8(shape, each) for each in (A, QuantizationParameters(1 / 127), QuantizationParameters(2 / 255, LOWEST), B)
    )
    parts = (
        typed_layer("Dequantize", [x], TensorType(shape)),
        affine(2**-0.5, 0, ActivationKind.ERF),
        typed_layer("Quantize", [TensorType(shape)], erf),
        typed_layer("Dequantize", [erf], TensorType(shape)),
        affine(1, 1, ActivationKind.NONE),
        typed_layer("Quantize", [TensorType(shape)], more),
        typed_layer("Mul", [more, x], result),
    )
    return fused_layer(parts, ((0,), (-1,), (-2,), (-3,), (-4,), (-5,), (-6, 0)))


@pytest.mark.parametrize("kind", [ActivationKind.SIGMOID, ActivationKind.HARD_SIGMOID, ActivationKind.ERF], ids=str)
def test_groups_of_pointwise_layers(kind: ActivationKind) -> None:
    """Tables round between the parts as ONNX Runtime does, so all integers are equal."""
    shape = (1, 18, 3, 5)
    constants = (1 / 6, 0.5) if kind is ActivationKind.HARD_SIGMOID else ()
    layer = gelu(shape) if kind is ActivationKind.ERF else gate(shape, Activation(kind, *constants))
    feed = integers(shape)
    (wanted,) = run_layer(layer, feed)
    for name, found in results(layer, [feed]):
        np.testing.assert_array_equal(found, wanted, name)


@st.composite
def arithmetic(draw: st.DrawFn) -> Layer:
    n, c, *_ = shape = draw(batches), draw(channels), draw(sizes), draw(sizes)
    other = draw(st.sampled_from([shape, (n, c, 1, 1), (1, c, 1, 1), (1, 1, 1, 1)]))
    operator, activation = (
        draw(st.sampled_from(["Add", "Sub", "Mul"])),
        draw(st.sampled_from([NO_ACTIVATION, RELU, CLIP])),
    )
    inputs = [int8(shape, draw(parameters)), int8(other, draw(parameters))]
    return typed_layer(operator, inputs, int8(shape, draw(parameters)), None, activation)


@given(arithmetic())
@settings(max_examples=examples(25))
def test_arithmetic(layer: Layer) -> None:
    feeds = [integers(layer.type_of(i).shape, i) for i in range(2)]
    x, y = (real(feed, layer.type_of(i)) for i, feed in enumerate(feeds))
    check(layer, feeds, {"Add": x + y, "Sub": x - y, "Mul": x * y}[layer.op])


def test_a_sum_of_several_units() -> None:
    shape = (1, 33, 60, 60)
    layer = typed_layer("Add", [int8(shape, A), int8(shape, B)], int8(shape, A), None, RELU)
    feeds = [integers(shape, 1), integers(shape, 2)]
    check(layer, feeds, real(feeds[0], layer.type_of(0)) + real(feeds[1], layer.type_of(1)))


@st.composite
def pools(draw: st.DrawFn) -> Layer:
    op = draw(st.sampled_from(["MaxPool", "AveragePool"]))
    kernel = draw(st.tuples(*[st.integers(1, 4)] * 2))
    dilations = draw(st.tuples(*[st.integers(1, 2)] * 2)) if op == "MaxPool" else (1, 1)
    pads = tuple(draw(st.integers(0, kernel[axis] - 1)) for axis in (0, 1, 0, 1))
    spans = [(kernel[a] - 1) * dilations[a] + 1 for a in range(2)]
    size = tuple(spans[a] + draw(st.integers(0, 7)) for a in range(2))
    strides = draw(st.tuples(*[st.integers(1, 3)] * 2))
    result = [(size[a] + pads[a] + pads[2 + a] - spans[a]) // strides[a] + 1 for a in range(2)]
    n, c, source = draw(batches), draw(channels), draw(parameters)
    attributes: dict[str, Attribute] = {"kernel": kernel, "strides": strides, "pads": pads}
    attributes |= {"dilations": dilations} if op == "MaxPool" else {"count_include_pad": draw(st.integers(0, 1))}
    target = source if op == "MaxPool" else draw(parameters)
    activation = NO_ACTIVATION if op == "MaxPool" else draw(st.sampled_from([NO_ACTIVATION, RELU, CLIP]))
    return typed_layer(op, [int8((n, c, *size), source)], int8((n, c, *result), target), attributes, activation)


def pooled(layer: Layer, x: np.ndarray) -> np.ndarray:
    """Window by window, in double precision."""
    kernel, strides, pads = layer.ints("kernel"), layer.ints("strides"), layer.ints("pads")
    dilations = layer.ints("dilations") if layer.op == "MaxPool" else (1, 1)
    padded = np.full((*x.shape[:2], x.shape[2] + pads[0] + pads[2], x.shape[3] + pads[1] + pads[3]), np.nan)
    padded[:, :, pads[0] : pads[0] + x.shape[2], pads[1] : pads[1] + x.shape[3]] = x
    result = np.empty(layer.outputs[0].shape)
    for row, column in np.ndindex(*result.shape[2:]):
        top, left = row * strides[0], column * strides[1]
        rows, columns = (
            slice(begin, begin + (kernel[a] - 1) * dilations[a] + 1, dilations[a])
            for a, begin in enumerate((top, left))
        )
        window = padded[:, :, rows, columns]
        if layer.op == "MaxPool":
            result[:, :, row, column] = np.nanmax(window, axis=(2, 3))
        elif layer.integer("count_include_pad"):
            result[:, :, row, column] = np.nansum(window, axis=(2, 3)) / (window.shape[2] * window.shape[3])
        else:
            result[:, :, row, column] = np.nanmean(window, axis=(2, 3))
    return result


@given(pools())
@settings(max_examples=examples(25), deadline=None)
def test_pool(layer: Layer) -> None:
    feed = integers(layer.type_of(0).shape)
    check(layer, [feed], pooled(layer, real(feed, layer.type_of(0))))


@given(batches, channels, sizes, sizes, st.sampled_from(["average", "max"]), parameters, parameters)
@settings(max_examples=examples(15))
def test_global_pool(
    n: int, c: int, h: int, w: int, mode: str, source: QuantizationParameters, result: QuantizationParameters
) -> None:
    layer = typed_layer("GlobalPool", [int8((n, c, h, w), source)], int8((n, c, 1, 1), result), {"mode": mode})
    feed = integers((n, c, h, w))
    numbers = real(feed, layer.type_of(0))
    reduce = np.max if mode == "max" else np.mean
    check(layer, [feed], reduce(numbers, axis=(2, 3), keepdims=True))


def test_a_saturated_plane_sums_up_exactly() -> None:
    shape, lowest = (1, 17, 200, 200), QuantizationParameters(0.125, HIGHEST)
    layer = typed_layer("GlobalPool", [int8(shape, lowest)], int8((1, 17, 1, 1), lowest), {"mode": "average"})
    for _, found in results(layer, [np.full(shape, LOWEST, np.int8)]):
        assert (found == LOWEST).all()


@given(st.lists(st.tuples(st.integers(1, 33), st.sampled_from([A, B])), min_size=1, max_size=4), st.integers(1, 3))
@settings(max_examples=examples(20))
def test_concat_of_channels(parts: list[tuple[int, QuantizationParameters]], axis: int) -> None:
    shapes = [tuple(size if a == axis else (2, 19, 3, 4)[a] for a in range(4)) for size, _ in parts]
    inputs = [int8(shape, kind) for shape, (_, kind) in zip(shapes, parts, strict=True)]
    whole = tuple(sum(s[a] for s in shapes) if a == axis else shapes[0][a] for a in range(4))
    feeds = [integers(shape, number) for number, shape in enumerate(shapes)]
    wanted = np.concatenate([real(feed, kind) for feed, kind in zip(feeds, inputs, strict=True)], axis)
    check(typed_layer("Concat", inputs, int8(whole, A), {"axis": axis}), feeds, wanted)


def test_concat_of_more_than_one_step_reads() -> None:
    inputs = [int8((1, 5, 3, 4), A if number % 3 else B) for number in range(40)]
    feeds = [integers((1, 5, 3, 4), number) for number in range(40)]
    wanted = np.concatenate([real(feed, kind) for feed, kind in zip(feeds, inputs, strict=True)], 1)
    check(typed_layer("Concat", inputs, int8((1, 200, 3, 4), A), {"axis": 1}), feeds, wanted)


@pytest.mark.parametrize("result", [A, B], ids=["same", "other"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "linear_antialias"])
@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_resize(mode: str, scale: float, result: QuantizationParameters) -> None:
    shape = (2, 19, 6, 8)
    target = (*shape[:2], int(shape[2] * scale), int(shape[3] * scale))
    how: dict[str, Attribute] = {
        "mode": mode,
        "coordinates": "asymmetric",
        "nearest": "floor",
        "scales": (scale, scale),
    }
    layer, feed = typed_layer("Resize", [int8(shape, A)], int8(target, result), how), integers(shape)
    (wanted,) = run_layer(layer, feed)
    for name, found in results(layer, [feed]):
        assert np.abs(np.subtract(found, wanted, dtype=np.int32)).max() <= (mode != "nearest" or result != A), name


@pytest.mark.parametrize("axis", [1, 3])
def test_softmax(axis: int) -> None:
    shape = (2, 10, 3, 5)
    layer = typed_layer("Softmax", [int8(shape, A)], int8(shape, QuantizationParameters(1 / 256, -128)), {"axis": axis})
    feed = integers(shape)
    numbers = real(feed, layer.type_of(0))
    powers = np.exp(numbers - numbers.max(axis, keepdims=True))
    check(layer, [feed], powers / powers.sum(axis, keepdims=True))


@pytest.mark.parametrize(
    ("op", "shape", "result", "attributes"),
    [
        ("Slice", (1, 35, 5, 6), (1, 19, 4, 3), {"starts": (0, 16, 1, 0), "steps": (1, 1, 1, 2)}),
        ("Transpose", (2, 5, 3, 32), (2, 32, 5, 3), {"perm": (0, 3, 1, 2)}),
        ("Transpose", (2, 35, 5, 3), (2, 5, 3, 35), {"perm": (0, 2, 3, 1)}),
        ("Transpose", (2, 32, 5, 3), (2, 5, 3, 32), {"perm": (0, 2, 3, 1)}),
        ("Reshape", (2, 35, 2, 3), (2, 210), {}),
        ("Reshape", (2, 210), (2, 35, 2, 3), {}),
        ("DepthToSpace", (1, 64, 3, 2), (1, 16, 6, 4), {"size": 2, "mode": "DCR"}),
    ],
)
def test_moved_blocks(op: str, shape: Shape, result: Shape, attributes: Mapping[str, Attribute]) -> None:
    layer, feed = typed_layer(op, [int8(shape, A)], int8(result, A), attributes), integers(shape)
    (wanted,) = run_layer(layer, feed)
    for name, found in results(layer, [feed]):
        np.testing.assert_array_equal(found, wanted, name)


@pytest.mark.parametrize("sizes", [[5] * 3, [16, 3, 20], [32, 16]], ids=str)
def test_concat_of_equal_parameters_moves_bytes(sizes: list[int]) -> None:
    inputs = [int8((2, size, 3, 4), A) for size in sizes]
    feeds = [integers(kind.shape, number) for number, kind in enumerate(inputs)]
    for name, found in results(typed_layer("Concat", inputs, int8((2, sum(sizes), 3, 4), A), {"axis": 1}), feeds):
        np.testing.assert_array_equal(found, np.concatenate(feeds, 1), name)


def test_what_they_refuse() -> None:
    kind, float32, plain = int8((1, 4, 2, 2), A), TensorType((1, 4, 2, 2)), TensorType((1, 4, 2, 2), "int8")
    sigmoid = Activation(ActivationKind.SIGMOID)
    pool: dict[str, Attribute] = {"kernel": (1, 1), "strides": (1, 1), "pads": (0, 0, 0, 0)}
    refused = [
        typed_layer("Quantize", [plain], kind),
        typed_layer("Dequantize", [plain], float32),
        typed_layer("Quantize", [TensorType((1, 4, 2, 2), "float16")], kind),
        typed_layer("Add", [kind, float32], kind),
        typed_layer("Add", [kind, kind], kind, None, sigmoid),
        typed_layer("Add", [kind, int8((1, 1, 2, 2), A)], kind),
        typed_layer("MaxPool", [kind], int8(kind.shape, B), pool),
        typed_layer("Concat", [kind, plain], int8((1, 8, 2, 2), A), {"axis": 1}),
    ]
    for layer in refused:
        assert not [str(r.descriptor) for r in memory_bound_routines(8) if r.supports(layer)], layer.op
