"""OpenCL's Strassen convolutions against ONNX Runtime, and the layers that they do not support."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.devices.opencl.processor import OpenCLProcessor
from nnstretch.devices.opencl.routines.strassen import Strassen
from nnstretch.graph.layer import Layer
from tests.kits.kernels.convolution_parity import FOR_STRASSEN, NOT_FOR_STRASSEN, conv_layer, pointwise_layers
from tests.kits.opencl.opencl_parity import ACTIVATIONS, check_setting, some

pytestmark = pytest.mark.opencl


CHANNELS = st.sampled_from([96, 97, 100, 112, 127, 128, 130, 160])
OUTPUTS = st.sampled_from([64, 72, 96, 100, 128, 161])
LAYERS = pointwise_layers(CHANNELS, OUTPUTS, st.sampled_from(ACTIVATIONS))


@given(
    layer=LAYERS,
    units=st.sampled_from([1, 2, 5]),
    tiles=st.integers(1, 3),
)
@some
def test_strassen_of_awkward_sizes(processor: OpenCLProcessor, layer: Layer, units: int, tiles: int) -> None:
    routine = Strassen(replace(processor.runtime.traits, compute_units=units))
    assert routine.supports(layer)
    for parameters in routine.parameter_space(layer):
        check_setting(processor, routine, layer, {**parameters, "tiles": tiles})


def test_strassen_rejects_other_layers(processor: OpenCLProcessor) -> None:
    mine = Strassen(processor.runtime.traits)
    assert mine.supports(FOR_STRASSEN)
    assert not any(mine.supports(layer) for layer in NOT_FOR_STRASSEN)
    assert not mine.supports(conv_layer((1, 128, 8, 8), 16, (1, 1), pads=(0, 0, 0, 0)))
    assert not mine.supports(conv_layer((1, 128, 8, 8), 128, (1, 1), (2, 2), pads=(0, 0, 0, 0)))
    elsewhere = Strassen(replace(processor.runtime.traits, on_cpu=False))
    assert not elsewhere.supports(FOR_STRASSEN)
