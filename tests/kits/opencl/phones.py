"""GPUs of phones by what their drivers and vendors say, an NVIDIA GPU beside them, and layers of networks that run there."""

from __future__ import annotations

from dataclasses import replace

from nnstretch.devices.engine.build.instruction_sets import ISAS
from nnstretch.devices.opencl.properties import DeviceInfo
from nnstretch.devices.opencl.routines import Traits
from nnstretch.devices.opencl.traits import traits_of
from tests.kits.kernels.convolution_parity import conv_layer
from tests.kits.kernels.token_layers import attention_layer, product_layer
from tests.kits.opencl.opencl_parity import make_layer, numbers

ADRENO = DeviceInfo(
    index=0,
    name="QUALCOMM Adreno(TM)",
    platform="QUALCOMM Snapdragon(TM)",
    driver="OpenCL 3.0",
    compute_units=4,
    on_cpu=False,
    unified=True,
    fine_grained=True,
    atomics=False,
    command_times=True,
    scalar=True,
    usable=True,
    why_not="",
    local_memory=32 << 10,
    group_items=1024,
    vendor="qualcomm",
    half_arithmetic=True,
)
"""As an Adreno 730's driver describes it."""
MALI = replace(ADRENO, name="Mali-G72", platform="ARM Platform", local_memory=0, group_items=384, vendor="arm")
"""As drivers of Mali GPUs describe them: local memory is global memory."""
NVIDIA = replace(
    ADRENO,
    name="NVIDIA H200",
    platform="NVIDIA CUDA",
    compute_units=132,
    unified=False,
    local_memory=48 << 10,
    vendor="nvidia",
    wave=32,
)


def traits(info: DeviceInfo) -> Traits:
    """The traits of one of these, whatever the host's CPU."""
    return traits_of(info, 1, ISAS[0])


PHONES = {
    "adreno": traits(ADRENO),
    "adreno with waves of 128": traits(replace(ADRENO, wave=128)),
    "small adreno": traits(replace(ADRENO, local_memory=16 << 10, group_items=256)),
    "mali": traits(MALI),
    "mali with small groups": traits(replace(MALI, group_items=256)),
    "adreno with images": traits(replace(ADRENO, image_buffer=1 << 27)),
    "mali with images": traits(replace(MALI, image_buffer=1 << 16)),
}
"""Traits of GPUs of phones by name."""

_NO_PADS = (0, 0, 0, 0)
LAYERS = {
    "first": conv_layer((1, 3, 224, 224), 64, (7, 7), (2, 2), (3, 3, 3, 3)),
    "3x3": conv_layer((1, 64, 56, 56), 64),
    "3x3 small image": conv_layer((1, 512, 7, 7), 512),
    "3x3 batch": conv_layer((8, 128, 28, 28), 128),
    "pointwise": conv_layer((1, 64, 56, 56), 256, (1, 1), pads=_NO_PADS),
    "pointwise small image": conv_layer((1, 960, 7, 7), 160, (1, 1), pads=_NO_PADS),
    "5x5": conv_layer((1, 64, 28, 28), 96, (5, 5), pads=(2, 2, 2, 2)),
    "grouped": conv_layer((1, 128, 28, 28), 128, groups=32),
    "depthwise 3x3": conv_layer((1, 32, 112, 112), 32, groups=32),
    "depthwise 3x3 stride 2": conv_layer((1, 96, 112, 112), 96, strides=(2, 2), groups=96),
    "depthwise 5x5": conv_layer((1, 384, 14, 14), 384, (5, 5), pads=(2, 2, 2, 2), groups=384),
    "depthwise 7x7": conv_layer((1, 96, 56, 56), 96, (7, 7), pads=(3, 3, 3, 3), groups=96),
    "dense": make_layer("Dense", [(1, 2048), numbers((1000, 2048))], (1, 1000)),
    "dense batch": make_layer("Dense", [(8, 64), numbers((10, 64))], (8, 10)),
    "global pool": make_layer("GlobalPool", [(1, 512, 7, 7)], (1, 512, 1, 1), {"mode": "average"}),
    "matmul": product_layer(((2,), ()), (64, 64, 64)),
    "matmul of rows": product_layer(((2,), ()), (64, 64, 64), transposed=(False, True)),
    "attention": attention_layer((1, 2, 50, 50, 64, 64), heads=2, groups=1),
}
"""By name."""
