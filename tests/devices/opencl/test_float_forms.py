"""OpenCL routines for float32 layers compute int8 layers unrounded, and types are converted, against ONNX Runtime and numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from nnstretch.devices.base.float_form import FloatFormRoutine, float_form_routines
from nnstretch.devices.base.routine import Layout, reorder_layer
from nnstretch.devices.base.spec import ProcessorSpec, usable_cores
from nnstretch.devices.cpu.routines import REORDER_ROUTINE
from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.devices.opencl.routines import Reorder, Traits, routines
from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.graph.dtypes import HIGHEST, LOWEST, QuantizationParameters
from nnstretch.graph.float_form import float_form
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.graph.reference import run_layer
from tests.kits.kernels.int8_layers import int8_feeds, typed_layer
from tests.kits.opencl.opencl_driver import quickly_compiling, run_lowering
from tests.kits.opencl.opencl_parity import relative_error, tolerance_of
from tests.kits.opencl.small_layers import BYTES, IMAGE, INT8_LAYERS

pytestmark = pytest.mark.opencl

HALF = "float16"
KINDS = (None, Traits(block=4, on_cpu=False, compute_units=4, registers=16, local_memory=16 << 10, group_items=256))
SHAPE = (2, 19, 3, 7)
ODD = QuantizationParameters(float(np.float32(0.03)), -7)


@pytest.fixture(scope="module")
def processor() -> OpenCLProcessor:
    return quickly_compiling(ProcessorSpec("opencl", 0, usable_cores()[:1]), ("float32", HALF))


def with_form(layer: Layer) -> bool:
    """Whether a layer has a float form; no routine computes several in one step."""
    return float_form(layer) is not None and not layer.parts


@pytest.mark.parametrize("traits", KINDS, ids=["device", "groups"])
@pytest.mark.parametrize(
    "layer", [pytest.param(one, id=f"{n}-{one.op}") for n, one in enumerate(INT8_LAYERS) if with_form(one)]
)
def test_float_forms(processor: OpenCLProcessor, layer: Layer, traits: Traits | None) -> None:
    """What the layer's float form gives in ONNX Runtime, in float32 and in float16, before it is rounded."""
    form = float_form(layer)
    assert form is not None
    feeds = int8_feeds(layer)
    types = [layer.type_of(index) for index in layer.activations]
    rounding = [tensor.quantization or QuantizationParameters(0.125) for tensor in types]
    floats = [one.dequantize(feed) for one, feed in zip(rounding, feeds, strict=True)]
    (wanted,) = run_layer(form, *floats)
    supporting = [
        one
        for one in float_form_routines(routines(traits or processor.runtime.traits, ("float32", HALF)))
        if one.supports(layer)
    ]
    assert "float32" in {one.descriptor.dtype for one in supporting}
    for routine in supporting:
        parameters = routine.default_parameters(layer)
        inputs, outputs = routine.layouts(layer, parameters)
        for layout, tensor in zip((*inputs, *outputs), (*types, *layer.outputs), strict=True):
            assert layout.element(tensor).name in ("float32", routine.descriptor.dtype)
        lowering = routine.lower(layer, parameters)
        (found,) = run_lowering(processor.runtime, lowering, form, floats, inputs, outputs)
        assert relative_error(found, wanted) <= tolerance_of(routine), str(routine.descriptor)


TYPES = [pair for pair in itertools.product((None, "float32", HALF), repeat=2) if pair[0] != pair[1]]
BLOCKS = ((0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 1))


@pytest.mark.parametrize("traits", KINDS, ids=["device", "groups"])
@pytest.mark.parametrize("blocks", BLOCKS, ids=str)
@pytest.mark.parametrize("types", TYPES, ids=str)
def test_conversions_give_what_onnx_defines(
    processor: OpenCLProcessor,
    traits: Traits | None,
    blocks: tuple[int, int],
    types: tuple[str | None, str | None],
) -> None:
    """Between int8, float32 and float16, in plain layout (0), the device's blocks (1) and those of another processor (2)."""
    traits = traits or processor.runtime.traits
    sizes = (0, traits.block, {4: 16, 8: 4, 16: 4}[traits.block])
    source, target = (Layout(sizes[block], dtype) for block, dtype in zip(blocks, types, strict=True))
    tensor, floats = TensorType(SHAPE, "int8", ODD), TensorType(SHAPE)
    layer, routine = reorder_layer(tensor, source, target), Reorder(traits)
    assert routine.supports(layer)
    given = ties_and_extremes() if source.dtype else integers()
    wanted = converted(given, source.dtype, target.dtype)
    seen = Layer("seen", "Identity", (floats if source.dtype else tensor,), (floats if target.dtype else tensor,))
    (found,) = run_lowering(processor.runtime, routine.lower(layer, {}), seen, [given], (source,), (target,))
    np.testing.assert_array_equal(found, wanted)


def integers() -> np.ndarray:
    found = np.random.default_rng(0).integers(LOWEST, HIGHEST, SHAPE, np.int8, endpoint=True)
    found.reshape(-1)[:2] = LOWEST, HIGHEST
    return found


def ties_and_extremes() -> np.ndarray:
    """Floats within and beyond the range, among them the middles between two integers."""
    found = np.random.default_rng(0).uniform(-5, 5, SHAPE).astype(np.float32)
    ties = (np.arange(-140, 140) + 0.5) * np.float32(ODD.scale)
    found.reshape(-1)[: ties.size] = ties
    return found


def converted(given: np.ndarray, source: str | None, target: str | None) -> np.ndarray:
    """What numpy makes of numbers as they are stored; floats as float32."""
    if source:
        given = given.astype(source).astype(np.float32)
    if source and target is None:
        return ODD.quantize(given)
    if target and source is None:
        given = ODD.dequantize(given)
    return given.astype(target).astype(np.float32) if target else given


def test_conversions_are_those_of_the_cpu(processor: OpenCLProcessor) -> None:
    """So it makes no difference who converts."""
    block = processor.blocked.block
    for source, target in ((Layout(block), Layout(block, "float32")), (Layout(block, "float32"), Layout(0))):
        layer = reorder_layer(BYTES, source, target)
        assert REORDER_ROUTINE.supports(layer)
        assert processor.reorder.supports(layer)


def test_what_cannot_be_converted_is_refused(processor: OpenCLProcessor) -> None:
    block = processor.blocked.block
    plain, tiny = TensorType(IMAGE, "int8"), TensorType(IMAGE, "int8", QuantizationParameters(1e-38))
    assert not processor.reorder.supports(reorder_layer(plain, Layout(block), Layout(block, "float32")))
    assert not processor.reorder.supports(reorder_layer(tiny, Layout(block, "float32"), Layout(block)))
    assert processor.reorder.supports(reorder_layer(tiny, Layout(block), Layout(block, "float32")))
    assert not processor.reorder.supports(reorder_layer(BYTES, Layout(block, "float64"), Layout(block)))


def test_devices_have_float_forms_where_they_are_wanted() -> None:
    spec = ProcessorSpec("opencl", 0, usable_cores()[:1])
    layer = typed_layer("Add", [BYTES, BYTES], BYTES, None, Activation(ActivationKind.RELU))
    for wanted in (False, True):
        device = OpenCLProcessor(spec, ("float32", HALF), float_forms=wanted)
        forms = {
            one.descriptor.dtype for one in device.routines if isinstance(one, FloatFormRoutine) and one.supports(layer)
        }
        assert forms == ({"float32", HALF} if wanted else set())
