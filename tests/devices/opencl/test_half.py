"""OpenCL routines with float16 storage against ONNX Runtime, with kernels for CPUs and for other devices."""

from __future__ import annotations

import numpy as np
import pytest

from nnstretch.devices.base.routine import Layout, reorder_layer
from nnstretch.devices.base.spec import ProcessorSpec, usable_cores
from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.devices.opencl.routines import Traits, routines
from nnstretch.graph.layer import Layer, TensorType
from tests.kits.kernels.convolution_parity import conv_layer, reference
from tests.kits.opencl.opencl_driver import quickly_compiling, run_lowering
from tests.kits.opencl.opencl_parity import ACTIVATIONS, RELU, feeds_of, make_layer, numbers, tolerance_of

pytestmark = pytest.mark.opencl

HALF = "float16"
KINDS = (None, Traits(block=16, on_cpu=False, compute_units=4, registers=4), Traits(4, True, 3, 32))


@pytest.fixture(scope="module")
def processor() -> OpenCLProcessor:
    return quickly_compiling(ProcessorSpec("opencl", 0, usable_cores()[:1]), ("float32", HALF))


@pytest.mark.parametrize("traits", KINDS, ids=["device", "other device", "block 4"])
@pytest.mark.parametrize(
    ("layer", "algorithms"),
    [
        (conv_layer((1, 20, 7, 16), 35, residual=True, activation=RELU), {"direct", "winograd"}),
        (conv_layer((2, 36, 5, 9), 36, groups=3, activation=ACTIVATIONS[4]), {"direct", "winograd"}),
        (conv_layer((1, 3, 11, 17), 20, (7, 7), strides=(2, 2)), {"planar", "direct"}),
        (conv_layer((1, 40, 9, 9), 40, groups=40, activation=ACTIVATIONS[6]), {"depthwise", "direct"}),
        (make_layer("Dense", [(2, 130), numbers((90, 130)) / 11], (2, 90)), {"dense"}),
        (make_layer("Concat", [(1, 5, 3, 3), (1, 6, 3, 3)], (1, 11, 3, 3), {"axis": 1}), {"concat_blocked"}),
        (make_layer("Activation", [(1, 5, 3, 3)], (1, 5, 3, 3), {}, ACTIVATIONS[8]), {"map"}),
        (make_layer("Add", [(2, 5, 3, 3), (2, 5, 3, 3)], (2, 5, 3, 3), {}, RELU), {"binary"}),
        (make_layer("Mul", [(2, 21, 3, 3), numbers((21, 1, 1))], (2, 21, 3, 3)), {"binary_channel"}),
        (make_layer("Affine", [(1, 5, 3, 3), numbers((5,)), numbers((5,))], (1, 5, 3, 3)), {"affine"}),
        (
            make_layer("LayerNorm", [(2, 21, 3, 3), numbers((21,))], (2, 21, 3, 3), {"axis": 1, "epsilon": 1e-5}),
            {"layer_norm_blocked"},
        ),
        (make_layer("GroupNorm", [(2, 21, 3, 3)], (2, 21, 3, 3), {"groups": 3, "epsilon": 1e-5}), {"group_norm"}),
        (make_layer("GlobalPool", [(2, 5, 3, 3)], (2, 5, 1, 1), {"mode": "average"}), {"global_pool"}),
    ],
    ids=lambda value: value.op if isinstance(value, Layer) else "",
)
def test_half_routines(processor: OpenCLProcessor, layer: Layer, algorithms: set[str], traits: Traits | None) -> None:
    inputs = feeds_of(layer)
    supporting = [r for r in routines(traits or processor.runtime.traits, (HALF,)) if r.supports(layer)]
    assert {routine.descriptor.algorithm for routine in supporting} == algorithms
    wanted = reference(layer, inputs)
    scale = float(np.ptp(wanted))
    for routine in supporting:
        for parameters in routine.parameter_space(layer)[:2]:
            layouts = routine.layouts(layer, parameters)
            lowering = routine.lower(layer, parameters)
            assert all(np.dtype(constant.dtype) == np.float16 for constant in lowering.constants)
            (found,) = run_lowering(processor.runtime, lowering, layer, inputs, *layouts)
            assert float(np.abs(found - wanted).max()) <= tolerance_of(routine) * scale, (
                f"{routine.descriptor} {dict(parameters)}"
            )


def test_numbers_beyond_a_half_are_stored_as_the_largest(processor: OpenCLProcessor) -> None:
    layer = make_layer("Activation", [(1, 5, 3, 3)], (1, 5, 3, 3), {}, ACTIVATIONS[9])
    (routine,) = [r for r in routines(processor.runtime.traits, (HALF,)) if r.supports(layer)]
    lowering, layouts = routine.lower(layer, {"blocked": 1}), routine.layouts(layer, {"blocked": 1})
    (found,) = run_lowering(processor.runtime, lowering, layer, [np.full((1, 5, 3, 3), 50, np.float32)], *layouts)
    assert (found == np.finfo(np.float16).max).all()


@pytest.mark.parametrize("blocks", [(0, 1), (1, 0), (0, 0), (1, 1)])
@pytest.mark.parametrize("dtypes", [(None, HALF), (HALF, None), (HALF, HALF)])
def test_reorder_rounds_and_moves_every_number(
    processor: OpenCLProcessor, blocks: tuple[int, int], dtypes: tuple[str | None, str | None]
) -> None:
    block = processor.blocked.block
    source, target = (Layout(block * b, dtype) for b, dtype in zip(blocks, dtypes, strict=True))
    shape = (2, 19, 3, 7)
    layer, routine = reorder_layer(TensorType(shape), source, target), processor.reorder
    assert routine.supports(layer)
    values = numbers(shape)
    (found,) = run_lowering(processor.runtime, routine.lower(layer, {}), layer, [values], (source,), (target,))
    assert np.array_equal(found, values.astype(np.float16).astype(np.float32))
