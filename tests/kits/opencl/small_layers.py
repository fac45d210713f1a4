"""Small layers for every OpenCL kernel, and devices that the kernels are made for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

from nnstretch.devices.base.float_form import float_form_routines
from nnstretch.devices.base.routine import Layout, Parameters, Routine, reorder_layer
from nnstretch.devices.opencl.routines import Reorder, Traits, routines
from nnstretch.devices.opencl.routines.images import reads_image
from nnstretch.graph.dtypes import QuantizationParameters
from nnstretch.graph.layer import Attribute, Layer, TensorType
from tests.kits.kernels.convolution_parity import conv_layer
from tests.kits.kernels.convolution_shapes import dense_layer
from tests.kits.kernels.int8_layers import quantized, summed, typed_layer
from tests.kits.kernels.token_layers import attention_layer, product_layer
from tests.kits.opencl.opencl_parity import ACTIVATIONS, RELU, make_layer, numbers

IMAGE = (1, 5, 3, 4)
POOL: dict[str, Attribute] = {"kernel": (3, 2), "strides": (2, 1), "pads": (1, 0, 1, 1)}
RESIZE: dict[str, Attribute] = {"nearest": "floor", "scales": (2.0, 1.5)}
LAYERS = (
    conv_layer((1, 6, 5, 6), 7, residual=True, activation=RELU),
    conv_layer((1, 6, 4, 7), 6, (3, 2), (2, 2), (0, 1, 1, 0), groups=3, activation=ACTIVATIONS[4]),
    conv_layer((1, 5, 4, 5), 9, (1, 1), pads=(0, 0, 0, 0), residual=True),
    conv_layer((1, 3, 7, 6), 5, (3, 3), (2, 2)),
    conv_layer((1, 6, 5, 7), 6, groups=6, activation=RELU),
    conv_layer((1, 6, 5, 7), 6, strides=(2, 2), groups=6, residual=True),
    conv_layer((1, 96, 3, 3), 64, (1, 1), pads=(0, 0, 0, 0)),
    conv_layer((1, 18, 5, 3), 17, residual=True, activation=ACTIVATIONS[4]),
    make_layer("Dense", [(3, 9), numbers((7, 9)), numbers((7,)), (3, 7)], (3, 7), {}, RELU),
    make_layer("MaxPool", [IMAGE], (1, 5, 2, 4), {**POOL, "dilations": (1, 1)}),
    make_layer("AveragePool", [IMAGE], (1, 5, 2, 4), {**POOL, "count_include_pad": 0}),
    make_layer("GlobalPool", [IMAGE], (1, 5, 1, 1), {"mode": "average"}),
    *(make_layer("Activation", [IMAGE], IMAGE, {}, activation) for activation in ACTIVATIONS[1:]),
    make_layer("Sub", [IMAGE, IMAGE], IMAGE, {}, RELU),
    make_layer("Mul", [IMAGE, (1, 5, 1, 1)], IMAGE),
    make_layer("Sub", [(2, 1, 5), (3, 1)], (2, 3, 5)),
    make_layer("Affine", [IMAGE, numbers((5,)), numbers((5,))], IMAGE),
    make_layer("Concat", [IMAGE, (1, 6, 3, 4)], (1, 11, 3, 4), {"axis": 1}),
    make_layer("Concat", [(3, 4), (3, 7)], (3, 11), {"axis": 1}),
    make_layer("Softmax", [(2, 21)], (2, 21), {"axis": 1}),
    make_layer("LayerNorm", [IMAGE, numbers((5,))], IMAGE, {"axis": 1, "epsilon": 1e-5}),
    make_layer("LayerNorm", [(3, 7)], (3, 7), {"axis": 1, "epsilon": 1e-5}),
    make_layer("PRelu", [IMAGE, numbers((5,))], IMAGE),
    make_layer("GroupNorm", [IMAGE], IMAGE, {"groups": 5, "epsilon": 1e-5}),
    make_layer("Resize", [IMAGE], (1, 5, 6, 6), {**RESIZE, "mode": "linear", "coordinates": "half_pixel"}),
    make_layer("Resize", [IMAGE], (1, 5, 6, 6), {**RESIZE, "mode": "nearest", "coordinates": "asymmetric"}),
    make_layer("Reshape", [IMAGE], (5, 12)),
    make_layer("Transpose", [IMAGE], (1, 3, 4, 5), {"perm": (0, 2, 3, 1)}),
    make_layer("Transpose", [(7, 3)], (3, 7), {"perm": (1, 0)}),
    make_layer("Rearrange", [(1, 9, 4, 4)], (4, 9, 2, 2), {"sizes": (1, 2, 2, 2, 2), "perm": (0, 1, 3, 2, 4)}),
    make_layer("Div", [IMAGE, numbers((5, 1, 1))], IMAGE),
    make_layer("Pad", [IMAGE], (1, 5, 5, 6), {"pads": (0, 0, 1, 2, 0, 0, 1, 0), "mode": "constant", "value": 1.0}),
    make_layer("Pad", [(3, 5)], (3, 8), {"pads": (0, 2, 0, 1), "mode": "reflect", "value": 0.0}),
    make_layer("Reduce", [IMAGE], (1, 5), {"axes": (2, 3), "mode": "mean"}),
    make_layer("Reduce", [IMAGE], (1, 3, 4), {"axes": (1,), "mode": "max"}),
    product_layer(((2,), ()), (5, 6, 7)),
    product_layer(((2,), (2,)), (5, 6, 7), transposed=(False, True)),
    attention_layer((1, 2, 5, 9, 6, 5), heads=2, groups=1, biases=[(1, 2, 1, 9), numbers((1, 1, 5, 9))]),
    attention_layer((2, 1, 3, 4, 5, 6), heads=1, groups=1, rows=True, factor=numbers((2, 1, 1, 1)), epsilon=1.0),
    make_layer("Slice", [(1, 9, 3, 4)], (1, 5, 3, 2), {"starts": (0, 4, 0, 0), "steps": (1, 1, 1, 2)}),
)
A, B = QuantizationParameters(0.0625, 3), QuantizationParameters(0.03, -7)
BYTES, OTHERS, FEW = (TensorType(IMAGE, "int8", A), TensorType(IMAGE, "int8", B), TensorType((1, 5, 2, 4), "int8", A))
INT8_LAYERS = (
    quantized(conv_layer((1, 6, 5, 6), 7, residual=True), 1),
    quantized(conv_layer((1, 6, 4, 7), 6, (3, 2), (2, 2), (0, 1, 1, 0), groups=3), 1),
    summed(quantized(conv_layer((1, 5, 4, 5), 9, (1, 1), pads=(0, 0, 0, 0), residual=True), 1)),
    quantized(conv_layer((1, 6, 5, 7), 6, strides=(2, 2), groups=6, residual=True), 1),
    quantized(dense_layer(3, 9, 7, bias=True, residual=True, activation=RELU), 1),
    typed_layer("Quantize", [TensorType((3, 7))], TensorType((3, 7), "int8", A)),
    typed_layer("Dequantize", [BYTES], TensorType(IMAGE)),
    typed_layer("Quantize", [BYTES], OTHERS),
    typed_layer("Activation", [BYTES], OTHERS, None, ACTIVATIONS[3]),
    typed_layer("Add", [BYTES, OTHERS], BYTES),
    typed_layer("Mul", [BYTES, TensorType((1, 5, 1, 1), "int8", B)], BYTES),
    typed_layer("MaxPool", [BYTES], FEW, {**POOL, "dilations": (1, 1)}),
    typed_layer("AveragePool", [BYTES], FEW, {**POOL, "count_include_pad": 0}),
    typed_layer("GlobalPool", [BYTES], TensorType((1, 5, 1, 1), "int8", B), {"mode": "average"}),
    typed_layer("Concat", [BYTES, OTHERS], TensorType((1, 10, 3, 4), "int8", A), {"axis": 1}),
    typed_layer("Reshape", [BYTES], TensorType((5, 12), "int8", A)),
)
WITH_FLOAT_FORMS = tuple(layer for layer in INT8_LAYERS if layer.op in ("Conv", "Dense", "Quantize", "GlobalPool"))
"""Int8 layers whose float forms are computed, too; others have the kernels of float32 layers without change."""
KINDS = {
    "cpu": Traits(block=4, on_cpu=True, compute_units=3, registers=32),
    "plain": Traits(block=8, on_cpu=False, compute_units=2, registers=8),
    "groups": Traits(block=4, on_cpu=False, compute_units=2, registers=16, local_memory=8 << 10, group_items=64),
}
"""Devices on a CPU, without local memory, and with work groups that share operands in it."""
IMAGES = {
    "images": replace(KINDS["plain"], block=4, registers=16, image_buffer=1 << 16),
    "groups and images": replace(KINDS["groups"], local_memory=16 << 10, image_buffer=1 << 16),
}
"""Like the latter two, with images and local memory for all tiles; `image_cases` has their settings."""


def cases(traits: Traits, settings: int | None = 1) -> Iterator[tuple[Routine, Layer, Parameters]]:
    """All routines of a device with `traits` and their first settings (all: None) for every layer that they support.

    The routines for float32 and for float16 come with every layer, and some with the float forms of int8 layers; changes of
    layouts and types come last.
    """
    for layer in (*LAYERS, *INT8_LAYERS):
        for routine in routines(traits, ("float32", "float16")):
            if routine.supports(layer):
                for parameters in islice(routine.parameter_space(layer), settings):
                    yield routine, layer, parameters
    for layer in WITH_FLOAT_FORMS:
        for form in float_form_routines(routines(traits, ("float32", "float16"))):
            if form.supports(layer):
                yield form, layer, form.default_parameters(layer)
    for blocks in ((0, 1), (1, 0), (1, 1)):
        source, target = (Layout(traits.block * blocked) for blocked in blocks)
        for tensor in (TensorType(IMAGE), BYTES):
            yield Reorder(traits), reorder_layer(tensor, source, target), {}
        for dtype in ("float32", "float16"):
            yield Reorder(traits), reorder_layer(BYTES, replace(source, dtype=dtype), target), {}
            yield Reorder(traits), reorder_layer(BYTES, source, replace(target, dtype=dtype)), {}
    yield Reorder(traits), reorder_layer(TensorType(IMAGE), Layout(traits.block), Layout(16)), {}
    yield Reorder(traits), reorder_layer(BYTES, Layout(traits.block, "float32"), Layout(16)), {}
    yield Reorder(traits), reorder_layer(BYTES, Layout(16), Layout(traits.block, "float16")), {}


def image_cases(traits: Traits, settings: int | None = 1) -> Iterator[tuple[Routine, Layer, Parameters]]:
    """As `cases`, of float layers, and only settings that read images."""
    for layer in LAYERS:
        for routine in routines(traits, ("float32", "float16")):
            if routine.supports(layer):
                with_images = (one for one in routine.parameter_space(layer) if reads_image(one))
                for parameters in islice(with_images, settings):
                    yield routine, layer, parameters
