"""OpenCL routines with the traits of other devices: other blocks, few registers, devices not on the CPU."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.devices.opencl.routines import Traits, routines
from nnstretch.graph.layer import Layer
from tests.kits.kernels.convolution_parity import conv_layer
from tests.kits.kernels.token_layers import product_layer
from tests.kits.opencl.opencl_parity import ACTIVATIONS, RELU, check, check_setting, make_layer, numbers

pytestmark = pytest.mark.opencl

GPU = Traits(block=16, on_cpu=False, compute_units=4, registers=4)


@pytest.mark.parametrize(
    "traits",
    [
        Traits(block=4, on_cpu=True, compute_units=3, registers=32),
        Traits(block=8, on_cpu=True, compute_units=1, registers=16),
        GPU,
        replace(GPU, block=4, registers=16),
        replace(GPU, block=4, registers=16, local_memory=32 << 10, group_items=256),
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
        (make_layer("GroupNorm", [(1, 21, 3, 3)], (1, 21, 3, 3), {"groups": 7, "epsilon": 1e-5}), {"group_norm"}),
        (make_layer("Softmax", [(2, 5)], (2, 5), {"axis": 1}), {"softmax"}),
        (
            make_layer("Transpose", [(2, 21, 3, 4)], (2, 3, 4, 21), {"perm": (0, 2, 3, 1)}),
            {"channels_last", "strided"},
        ),
        (
            make_layer("Slice", [(2, 21, 3, 4)], (2, 5, 3, 4), {"starts": (0, 16, 0, 0), "steps": (1, 1, 1, 1)}),
            {"move_blocks", "strided"},
        ),
    ],
    ids=lambda value: value.op if isinstance(value, Layer) else "",
)
def test_other_blocks_and_devices(
    processor: OpenCLProcessor, layer: Layer, algorithms: set[str], traits: Traits
) -> None:
    check(processor, layer, algorithms, first_settings=1, traits=traits)


WIDE = Traits(4, False, 4, 16, local_memory=32 << 10, group_items=256, wave=128, item_registers=96)
"""A GPU whose waves are wider than the groups of others."""
FEW_REGISTERS = Traits(4, False, 4, 10, group_items=256, wave=16, item_registers=64)


@pytest.mark.parametrize(
    ("traits", "layer", "kernel", "expected"),
    [
        (WIDE, make_layer("Dense", [(3, 70), numbers((9, 70))], (3, 9)), "dense", {"GROUP": 128, "local": 128}),
        (WIDE, conv_layer((1, 300, 5, 5), 33, (1, 1), pads=(0, 0, 0, 0), residual=True), "add_splits", {"local": 128}),
        (WIDE, conv_layer((1, 20, 9, 7), 18, residual=True), "winograd_decode", {"local": 128}),
        (
            FEW_REGISTERS,
            product_layer(((2,), ()), (5, 9, 7), transposed=(False, True)),
            "matmul_of_rows",
            {"COLUMNS": 2},
        ),
        (
            FEW_REGISTERS,
            make_layer("GlobalPool", [(1, 5, 7, 3)], (1, 5, 1, 1), {"mode": "average"}),
            "global_pool",
            {"SUMS": 8},
        ),
        (FEW_REGISTERS, conv_layer((1, 6, 9, 20), 6, groups=6), "conv_depthwise", {"PIXELS": 2}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_groups_and_tiles_follow_waves_and_registers(
    processor: OpenCLProcessor, traits: Traits, layer: Layer, kernel: str, expected: dict[str, int]
) -> None:
    """Sizes that other devices do not have, and their results."""
    routine, parameters, launch = next(
        (routine, parameters, call.launch)
        for routine in routines(traits)
        if routine.supports(layer)
        for parameters in routine.parameter_space(layer)
        for call in routine.lower(layer, parameters).calls
        if call.kernel == kernel and call.launch is not None
    )
    sizes = dict(launch.defines) | {"local": math.prod(launch.local_size or ())}
    assert {name: sizes[name] for name in expected} == expected
    check_setting(processor, routine, layer, parameters)
