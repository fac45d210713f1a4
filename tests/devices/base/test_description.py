"""Descriptions of remote processors: invalid fields are rejected."""

from __future__ import annotations

import pytest

from nnstretch.devices.base.description import Description, description_of
from nnstretch.devices.remote import ProfiledProcessor
from tests.kits.kernels.convolution_parity import conv_layer

LAYERS = (
    conv_layer((1, 128, 14, 14), 128),
    conv_layer((1, 128, 14, 14), 128, (1, 1), pads=(0, 0, 0, 0)),
    conv_layer((1, 48, 14, 14), 48, groups=2),
)


@pytest.mark.parametrize(("cores", "registers"), [((), 4), ((0,), 16)])
def test_the_least_device_has_settings_for_its_routines(cores: tuple[int, ...], registers: int) -> None:
    least = Description("f", "opencl:0", "opencl", "device", 16, cores=cores, compute_units=1, registers=registers)
    assert description_of(least.to_json()) == least
    for layer in LAYERS:
        for routine in ProfiledProcessor(least).routines:
            if routine.supports(layer):
                assert all(min(setting.values(), default=1) > 0 for setting in routine.parameter_space(layer))
    for less in ({"compute_units": 0}, {"registers": registers - 1}):
        with pytest.raises(ValueError, match=f"is 1 and {registers}"):
            description_of({**least.to_json(), **less})
