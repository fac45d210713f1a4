"""OpenCL routines for int8 layers against sums in whole numbers, and bit for bit against those of the CPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nnstretch.devices.base.routine import Layout, Lowering, Parameters, Routine, reorder_layer
from nnstretch.devices.base.spec import ProcessorSpec, usable_cores
from nnstretch.devices.cpu.routines import native_routines
from nnstretch.devices.engine.build.instruction_sets import local_isa
from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.devices.opencl.routines import OpenCLRoutine, Reorder, Traits, routines
from nnstretch.devices.opencl.sources import kernel_source
from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.dtypes import HIGHEST, LOWEST, QuantizationParameters
from nnstretch.graph.layer import Attribute, Layer, TensorType
from nnstretch.graph.reference import run_layer
from tests.kits.hypothesis_examples import examples
from tests.kits.kernels import kernel_driver
from tests.kits.kernels.convolution_parity import conv_layer
from tests.kits.kernels.convolution_shapes import dense_layer
from tests.kits.kernels.int8_layers import (
    SLACK,
    clips,
    exact_range,
    int8_feeds,
    quantized,
    steps_beyond,
    summed,
    typed_layer,
    zero_points,
)
from tests.kits.opencl.opencl_driver import quickly_compiling, run_lowering

pytestmark = pytest.mark.opencl

GROUPS = Traits(block=4, on_cpu=False, compute_units=4, registers=16, local_memory=16 << 10, group_items=256)
KINDS = {"device": None, "groups": GROUPS, "block 8": Traits(8, on_cpu=True, compute_units=2, registers=16)}
A, B = QuantizationParameters(0.0625, 3), QuantizationParameters(float(np.float32(0.03)), -7)
ENDS = QuantizationParameters(0.125, HIGHEST)
few = settings(max_examples=examples(7), deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def processor() -> OpenCLProcessor:
    return quickly_compiling(ProcessorSpec("opencl", 0, usable_cores()[:1]))


@pytest.fixture(params=KINDS, ids=list(KINDS))
def traits(request: pytest.FixtureRequest, processor: OpenCLProcessor) -> Traits:
    """Those of the device, and of others whose kernels it can run."""
    return KINDS[request.param] or processor.runtime.traits


@cache
def native() -> tuple[Routine, ...]:
    return native_routines(local_isa())


def on_cpu(layer: Layer, feeds: Sequence[np.ndarray]) -> np.ndarray:
    """What the CPU's first routine for the layer computes."""
    routine = next(routine for routine in native() if routine.supports(layer))
    setting = routine.parameter_space(layer)[0]
    lowering, layouts = routine.lower(layer, setting), routine.layouts(layer, setting)
    (found,) = kernel_driver.run_lowering(lowering, layer, feeds, *layouts)
    return found


def supporting(layer: Layer, traits: Traits) -> dict[str, OpenCLRoutine]:
    """The routines for a layer by their algorithm."""
    found = [routine for routine in routines(traits) if routine.supports(layer)]
    assert all(routine.descriptor.dtype == "int8" for routine in found)
    return {routine.algorithm: routine for routine in found}


def computed(
    processor: OpenCLProcessor, routine: OpenCLRoutine, layer: Layer, setting: Parameters, feeds: Sequence[np.ndarray]
) -> np.ndarray:
    lowering: Lowering = routine.lower(layer, setting)
    (found,) = run_lowering(processor.runtime, lowering, layer, feeds, *routine.layouts(layer, setting))
    return found


def check_weighted(
    processor: OpenCLProcessor, layer: Layer, traits: Traits, algorithm: str, setting: Parameters | None = None
) -> None:
    """A layer with weights: within half a step of the exact result, and equal to the CPU's."""
    routine, feeds = supporting(layer, traits)[algorithm], int8_feeds(layer)
    found = computed(processor, routine, layer, setting or routine.parameter_space(layer)[0], feeds)
    assert steps_beyond(found, *exact_range(layer, feeds)) <= 0.5 + SLACK
    if len(layer.activations) == 1:
        np.testing.assert_array_equal(found, on_cpu(layer, feeds))


def check(processor: OpenCLProcessor, layer: Layer, traits: Traits, algorithms: set[str]) -> None:
    """A layer without weights: all settings of all routines give what the CPU's gives, within a step of ONNX Runtime's."""
    found = supporting(layer, traits)
    assert set(found) == algorithms
    feeds = [integers(layer.type_of(index), index) for index in layer.activations]
    wanted, (reference,) = on_cpu(layer, feeds), run_layer(layer, *feeds)
    assert np.abs(np.subtract(wanted, reference, dtype=np.float64)).max() <= 1
    for routine in found.values():
        for setting in routine.parameter_space(layer):
            np.testing.assert_array_equal(computed(processor, routine, layer, setting, feeds), wanted)


def integers(tensor: TensorType, seed: int = 0) -> np.ndarray:
    """Random int8 with both ends among them, or floats."""
    rng = np.random.default_rng(seed)
    if tensor.dtype == "float32":
        return rng.uniform(-20, 20, tensor.shape).astype(np.float32)
    found = rng.integers(LOWEST, HIGHEST, tensor.shape, np.int8, endpoint=True)
    found.reshape(-1)[:2] = (LOWEST, HIGHEST)[: found.size]
    return found


def int8(shape: tuple[int, ...], quantization: QuantizationParameters = A) -> TensorType:
    return TensorType(shape, "int8", quantization)


@st.composite
def convolutions(draw: st.DrawFn, *, depthwise: bool = False) -> Layer:
    """Convolutions of awkward channels, groups, pads and zero points; few kernels, as each is compiled."""
    groups = draw(st.sampled_from([1, 1, 2, 3]))
    inputs, outputs = groups * draw(st.sampled_from([1, 3, 4, 7, 17])), groups * draw(st.sampled_from([1, 5, 8, 19]))
    kernel = draw(st.sampled_from([(3, 3), (1, 1), (2, 5)]))
    if depthwise:
        inputs = outputs = groups = draw(st.sampled_from([2, 5, 16, 20, 33]))
        kernel = (draw(st.integers(1, 4)), 3)
    layer = conv_layer(
        (draw(st.integers(1, 2)), inputs, draw(st.integers(6, 9)), draw(st.sampled_from([9, 11, 14]))),
        outputs,
        kernel,
        strides=(draw(st.integers(1, 3)), draw(st.integers(1, 2))),
        pads=draw(st.sampled_from([(0, 0, 0, 0), (1, 1, 1, 1), (3, 0, 1, 4)])),
        dilations=(draw(st.integers(1, 2)), 1 if depthwise else draw(st.integers(1, 2))),
        groups=groups,
        bias=draw(st.booleans()),
        residual=draw(st.booleans()),
        activation=draw(clips),
    )
    zeros = draw(st.tuples(zero_points, zero_points, zero_points))
    return quantized(layer, draw(st.integers(0, 999)), zeros, all_zero=draw(st.integers(0, 9)) == 0)


@few
@given(layer=convolutions(), vectors=st.integers(1, 2))
def test_any_convolution(processor: OpenCLProcessor, traits: Traits, layer: Layer, vectors: int) -> None:
    check_weighted(processor, layer, traits, "direct", {"pixels": 4, "vectors": vectors})


@few
@given(layer=convolutions(depthwise=True))
def test_depthwise_convolution(processor: OpenCLProcessor, traits: Traits, layer: Layer) -> None:
    check_weighted(processor, layer, traits, "depthwise", {"pixels": 4})


LAYERS = {
    "stem": (conv_layer((1, 3, 15, 17), 20, (7, 7), strides=(2, 2), pads=(3,) * 4), "direct"),
    "residual": (conv_layer((1, 20, 7, 14), 35, residual=True, activation=Activation(ActivationKind.RELU)), "direct"),
    "pointwise": (conv_layer((2, 36, 7, 7), 40, (1, 1), pads=(0,) * 4), "direct"),
    "mobilenet": (conv_layer((1, 24, 9, 9), 24, strides=(2, 2), groups=24), "depthwise"),
}


@pytest.mark.parametrize("name", LAYERS)
def test_the_settings_that_come_first(processor: OpenCLProcessor, name: str) -> None:
    layer, algorithm = LAYERS[name]
    layer = quantized(layer, 1, (127, -128, -128))
    for setting in supporting(layer, processor.runtime.traits)[algorithm].parameter_space(layer)[:1]:
        check_weighted(processor, layer, processor.runtime.traits, algorithm, setting)


@pytest.mark.parametrize("first", [True, False])
def test_sums_that_are_rounded_before_the_residual_is_added(processor: OpenCLProcessor, *, first: bool) -> None:
    layer = summed(quantized(conv_layer((1, 20, 7, 14), 35, residual=True), 3), first=first)
    check_weighted(processor, layer, processor.runtime.traits, "direct_add", {"pixels": 4, "vectors": 2})


@few
@given(
    shape=st.tuples(st.sampled_from([1, 2, 6]), st.sampled_from([1, 7, 16, 67]), st.sampled_from([1, 15, 16, 33])),
    residual=st.booleans(),
    activation=clips,
    zeros=st.tuples(zero_points, zero_points, zero_points),
    seed=st.integers(0, 999),
)
def test_dense(
    processor: OpenCLProcessor,
    traits: Traits,
    shape: tuple[int, int, int],
    *,
    residual: bool,
    activation: Activation,
    zeros: tuple[int, int, int],
    seed: int,
) -> None:
    layer = dense_layer(*shape, bias=seed % 2 == 0, residual=residual, activation=activation)
    check_weighted(processor, quantized(layer, seed, zeros), traits, "dense")


def test_saturated_sums_are_exact(processor: OpenCLProcessor, traits: Traits) -> None:
    """All products are 128 * 128, which two int16 products of a pair exceed."""
    layer = quantized(conv_layer((1, 64, 3, 4), 8, weight=np.zeros((8, 64, 3, 3), np.float32)), 1, (0, 0, 0))
    layer.constants[1][:] = LOWEST
    feeds = [np.full(layer.type_of(0).shape, LOWEST, np.int8)]
    found = computed(processor, supporting(layer, traits)["direct"], layer, {"pixels": 4, "vectors": 1}, feeds)
    assert steps_beyond(found, *exact_range(layer, feeds)) <= 0.5 + SLACK
    np.testing.assert_array_equal(found, on_cpu(layer, feeds))


def test_dot_products_of_packed_bytes(processor: OpenCLProcessor) -> None:
    """Drivers that have them compile them for devices that are no CPUs."""
    import pyopencl as cl

    device = processor.runtime.device
    if device.version < "OpenCL 3" or "cl_khr_integer_dot_product" not in device.extensions:
        pytest.skip(f"{device.name} has no dot products of packed int8")
    text = kernel_source("int8.cl") + "#if QUAD_PARTS != 1\n#error no dot products\n#endif\nkernel void f(void) {}\n"
    cl.Program(processor.runtime.context, text).build(["-cl-std=CL3.0", "-DNNS_BLOCK=4", "-DNNS_CPU=0"])
    check_weighted(processor, quantized(LAYERS["residual"][0], 1), GROUPS, "direct", {"pixels": 4, "vectors": 2})


@pytest.mark.parametrize("kind", ["alone", "residual", "summed"])
def test_ties(processor: OpenCLProcessor, traits: Traits, kind: str) -> None:
    """Scales whose ratios are tenths, so that many results lie next to the middle between two integers.

    With a residual, either is right: how compilers join its product to the sum decides.
    """
    layer = quantized(conv_layer((1, 8, 14, 14), 16, (1, 1), pads=(0,) * 4, residual=kind != "alone"), 1, (0, 0, 0))
    half, seventh = QuantizationParameters(0.5), QuantizationParameters(float(np.float32(0.35)))
    inputs = [replace(layer.type_of(0), quantization=QuantizationParameters(0.25)), *layer.inputs[1:]]
    if layer.has(3):
        inputs[3] = replace(layer.type_of(3), quantization=seventh)
    weights = np.random.default_rng(1).integers(-1, 2, layer.type_of(1).shape, np.int8)
    made = {1: weights, 2: np.zeros(16, np.int32), 4: np.full(16, 0.2, np.float32)}
    constants = MappingProxyType({**layer.constants, **{i: made[i] for i in layer.constants}})
    outputs = (replace(layer.outputs[0], quantization=half),)
    layer = replace(layer, inputs=tuple(inputs), outputs=outputs, constants=constants)
    layer = summed(layer) if kind == "summed" else layer
    routine = supporting(layer, traits)["direct_add" if kind == "summed" else "direct"]
    feeds = int8_feeds(layer)
    found = computed(processor, routine, layer, {"pixels": 4, "vectors": 1}, feeds)
    assert steps_beyond(found, *exact_range(layer, feeds)) <= 0.5 + SLACK
    if kind == "alone":
        np.testing.assert_array_equal(found, on_cpu(layer, feeds))


POOL: dict[str, Attribute] = {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1)}
IMAGE = (2, 21, 3, 4)
SIMPLE = {
    "quantize": (typed_layer("Quantize", [TensorType(IMAGE)], int8(IMAGE)), {"quantize"}),
    "quantize plain": (typed_layer("Quantize", [TensorType((3, 37))], int8((3, 37))), {"quantize"}),
    "dequantize": (typed_layer("Dequantize", [int8(IMAGE, B)], TensorType(IMAGE)), {"quantize"}),
    "dequantize plain": (typed_layer("Dequantize", [int8((3, 37), B)], TensorType((3, 37))), {"quantize"}),
    "requantize": (typed_layer("Quantize", [int8(IMAGE, B)], int8(IMAGE, ENDS)), {"quantize"}),
    "sigmoid": (
        typed_layer("Activation", [int8(IMAGE)], int8(IMAGE, B), None, Activation(ActivationKind.SIGMOID)),
        {"table"},
    ),
    "max": (
        typed_layer("MaxPool", [int8(IMAGE)], int8((2, 21, 2, 4)), {**POOL, "dilations": (1, 1)}),
        {"pool"},
    ),
    "average": (
        typed_layer("AveragePool", [int8(IMAGE)], int8((2, 21, 2, 4), B), {**POOL, "count_include_pad": 0}),
        {"pool"},
    ),
    "average with pads": (
        typed_layer("AveragePool", [int8(IMAGE, ENDS)], int8((2, 21, 2, 4)), {**POOL, "count_include_pad": 1}),
        {"pool"},
    ),
    "mean": (typed_layer("GlobalPool", [int8(IMAGE)], int8((2, 21, 1, 1), B), {"mode": "average"}), {"global_pool"}),
    "largest": (typed_layer("GlobalPool", [int8(IMAGE)], int8((2, 21, 1, 1), B), {"mode": "max"}), {"global_pool"}),
    "reshape": (typed_layer("Reshape", [int8(IMAGE)], int8((2, 252))), {"copy"}),
}


@pytest.mark.parametrize("name", SIMPLE)
def test_layers_without_weights(processor: OpenCLProcessor, traits: Traits, name: str) -> None:
    check(processor, *SIMPLE[name][:1], traits, SIMPLE[name][1])


parameters = st.builds(QuantizationParameters, st.floats(2.0**-10, 8.0, width=32), zero_points)


@few
@given(
    operator=st.sampled_from(["Add", "Sub", "Mul"]),
    channels=st.integers(1, 21),
    wide=st.sampled_from(["same", "image", "all"]),
    kinds=st.tuples(parameters, parameters, parameters),
    activation=clips,
)
def test_arithmetic(
    processor: OpenCLProcessor,
    traits: Traits,
    operator: str,
    channels: int,
    wide: str,
    kinds: Sequence[QuantizationParameters],
    activation: Activation,
) -> None:
    shape = (2, channels, 3, 5)
    other = {"same": shape, "image": (2, channels, 1, 1), "all": (1, channels, 1, 1)}[wide]
    layer = typed_layer(
        operator, [int8(shape, kinds[0]), int8(other, kinds[1])], int8(shape, kinds[2]), None, activation
    )
    check(processor, layer, traits, {"binary" if wide == "same" else "binary_channel"})


@few
@given(st.lists(st.tuples(st.integers(1, 21), st.sampled_from([A, A, B])), min_size=1, max_size=4), st.integers(1, 3))
def test_concat(
    processor: OpenCLProcessor, traits: Traits, parts: list[tuple[int, QuantizationParameters]], axis: int
) -> None:
    shapes = [tuple(size if a == axis else (2, 19, 3, 4)[a] for a in range(4)) for size, _ in parts]
    inputs = [int8(shape, kind) for shape, (_, kind) in zip(shapes, parts, strict=True)]
    whole = tuple(sum(s[a] for s in shapes) if a == axis else shapes[0][a] for a in range(4))
    layer = typed_layer("Concat", inputs, int8(whole), {"axis": axis})
    check(processor, layer, traits, {"concat_plain", "concat_blocked"} if axis == 1 else {"concat_plain"})


def test_quantize_rounds_as_onnx_does_at_ties_and_beyond_the_range(processor: OpenCLProcessor, traits: Traits) -> None:
    special = [np.inf, -np.inf, 3e38, -3e38, -0.0, 1e-30, np.nan]
    ties = (np.arange(-130, 130) + 0.5) * A.scale
    feed = np.concatenate([np.array(special), ties, np.nextafter(ties.astype(np.float32), 0)]).astype(np.float32)
    layer = typed_layer("Quantize", [TensorType(feed.shape)], int8(feed.shape))
    found = computed(processor, supporting(layer, traits)["quantize"], layer, {}, [feed])
    np.testing.assert_array_equal(
        found[: len(special)], [HIGHEST, LOWEST, HIGHEST, LOWEST, A.zero_point, A.zero_point, LOWEST]
    )
    np.testing.assert_array_equal(found[len(special) :], A.quantize(feed[len(special) :]))


@pytest.mark.parametrize("blocks", [(0, 1), (1, 0), (0, 0), (1, 1), (1, 2)])
def test_reorder_moves_every_integer(processor: OpenCLProcessor, traits: Traits, blocks: tuple[int, int]) -> None:
    other = {4: 16, 8: 4, 16: 4}[traits.block]
    source, target = (Layout((0, traits.block, other)[block]) for block in blocks)
    layer = reorder_layer(int8((2, 19, 3, 7)), source, target)
    routine = Reorder(traits)
    assert routine.supports(layer)
    values = integers(layer.type_of(0))
    (found,) = run_lowering(processor.runtime, routine.lower(layer, {}), layer, [values], (source,), (target,))
    np.testing.assert_array_equal(found, values)


def test_layers_beyond_the_kernels_are_left_to_others(processor: OpenCLProcessor) -> None:
    traits = processor.runtime.traits
    layer = quantized(conv_layer((1, 8, 5, 5), 8), 1)
    huge = MappingProxyType({**layer.constants, 2: np.full(8, 2**31 - 1, np.int32)})
    kind, plain = int8((1, 4, 2, 2)), TensorType((1, 4, 2, 2), "int8")
    tiny = int8((1, 4, 2, 2), QuantizationParameters(1e-38))
    for refused in (
        Layer(layer.name, layer.op, layer.inputs, layer.outputs, layer.attributes, layer.activation, huge),
        typed_layer("Quantize", [TensorType((1, 4, 2, 2))], tiny),
        typed_layer("Add", [kind, TensorType((1, 4, 2, 2))], kind),
        typed_layer("Add", [kind, kind], kind, None, Activation(ActivationKind.SIGMOID)),
        typed_layer("MaxPool", [kind], int8((1, 4, 2, 2), B), {**POOL, "dilations": (1, 1)}),
        typed_layer("Concat", [kind, plain], int8((1, 8, 2, 2)), {"axis": 1}),
    ):
        assert not [routine for routine in routines(traits) if routine.supports(refused)]
    assert layer.activation == NO_ACTIVATION
