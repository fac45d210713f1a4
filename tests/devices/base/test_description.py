"""Descriptions of remote processors: invalid fields are rejected."""

from __future__ import annotations

import pytest

from nnstretch.devices.base.description import Description, description_of
from nnstretch.devices.remote import ProfiledProcessor
from nnstretch.scheduler.costmodel.costs import Estimates
from tests.kits.kernels.convolution_parity import conv_layer
from tests.kits.kernels.int8_layers import quantized

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
    with pytest.raises(ValueError, match="wave is 48; it is a power of 2, or 0"):
        description_of({**least.to_json(), "wave": 48})
    for less in ({"compute_units": 0}, {"registers": registers - 1}):
        with pytest.raises(ValueError, match=f"is 1 and {registers}"):
            description_of({**least.to_json(), **less})


@pytest.mark.parametrize(("features", "fastest"), [(("asimd", "asimddp"), "direct"), (("asimddp", "i8mm"), "rows")])
def test_estimates_of_an_arm_cpu_follow_its_features(features: tuple[str, ...], fastest: str) -> None:
    """Convolutions without groups are computed from converted rows where that uses products of eight channels."""
    described = Description("f", "cpu:0", "cpu", "an ARM", 4, cores=(0,), isa="aarch64", features=features)
    assert description_of(described.to_json()) == described
    processor = ProfiledProcessor(described)
    for layer in map(quantized, LAYERS[:2], range(2)):
        seconds = {
            routine.descriptor.algorithm: Estimates().seconds(processor, routine, layer, setting)
            for routine in processor.routines
            if routine.supports(layer)
            for setting in routine.parameter_space(layer)[:1]
        }
        assert min(seconds, key=lambda name: seconds[name] or 1) == fastest
    for wrong in ("i8mm", [1], ["i" * 65]):
        with pytest.raises(ValueError, match="features is not a list of names"):
            description_of({**described.to_json(), "features": wrong})
