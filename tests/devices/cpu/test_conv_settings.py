"""Settings of the direct convolution: panels cover the output once, and few, sensible settings are offered."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.devices.cpu.routines.convolution.direct import DirectConvolution, Tile, computed_pixels, panels
from nnstretch.devices.engine.build.instruction_sets import ISAS, Isa
from nnstretch.graph.layer import Layer, TensorType
from tests.kits.kernels.convolution_parity import conv_layer
from tests.kits.kernels.cpu_routines import compute_bound_routines

WIDE, NARROW = ISAS[0], ISAS[1]


def direct(isa: Isa) -> DirectConvolution:
    (found,) = (routine for routine in compute_bound_routines(isa) if isinstance(routine, DirectConvolution))
    return found


def conv(channels: int, outputs: int, size: int, kernel: int = 1, stride: int = 1, groups: int = 1) -> Layer:
    return conv_layer(
        (1, channels, size, size),
        outputs,
        (kernel, kernel),
        strides=(stride, stride),
        pads=(kernel // 2,) * 4,
        groups=groups,
        bias=False,
        weight=np.broadcast_to(np.float32(0), (outputs, channels // groups, kernel, kernel)),
    )


@given(
    groups=st.integers(1, 6),
    inputs=st.integers(1, 40),
    outputs=st.integers(1, 90),
    tile=st.sampled_from([*direct(WIDE).tiles, *direct(NARROW).tiles]),
)
def test_panels_cover_every_output_once_and_read_what_its_group_reads(
    groups: int, inputs: int, outputs: int, tile: Tile
) -> None:
    made = panels(groups * outputs, groups * inputs, groups, tile)
    assert [panel.first for panel in made[1:]] == [panel.first + panel.outputs for panel in made[:-1]]
    assert made[0].first == 0
    assert 0 <= made[-1].first + made[-1].outputs - groups * outputs < tile.length
    assert max(panel.outputs for panel in made) <= tile.outputs
    for panel in made:
        last = min(panel.first + panel.outputs, groups * outputs) - 1
        assert panel.begin == panel.first // outputs * inputs
        assert panel.end == (last // outputs + 1) * inputs


@pytest.mark.parametrize("isa", ISAS, ids=[isa.name for isa in ISAS])
@pytest.mark.parametrize("groups", [1, 3, 17])
@pytest.mark.parametrize("outputs", [8, 16, 24, 51, 72, 77, 97, 112, 168, 272, 279, 408])
def test_few_distinct_settings_are_offered(isa: Isa, outputs: int, groups: int) -> None:
    channels = outputs if groups == 1 else 24 * groups
    space = direct(isa).parameter_space(conv(channels, channels, 28, 3, groups=groups))
    assert 1 <= len(space) <= 5
    assert len({tuple(sorted(setting.items())) for setting in space}) == len(space)
    assert all(set(setting) == {"ic_bn", "oc_bn", "reg_n", "tiles", "order"} for setting in space)


def test_groups_of_a_block_and_a_half_take_half_vectors() -> None:
    for stride in (1, 2):
        setting = direct(WIDE).parameter_space(conv(168, 168, 28, 3, stride, groups=7))[0]
        assert setting["oc_bn"] == 24


def test_pixels_stay_where_weights_are_small_and_inputs_pass_the_cache() -> None:
    assert direct(WIDE).parameter_space(conv(64, 512, 224))[0]["order"] == 1
    assert direct(WIDE).parameter_space(conv(512, 2048, 7))[0]["order"] == 0


@pytest.mark.parametrize("most", [6, 9, 12, 14, 28])
def test_tiles_compute_what_is_left_and_little_more(most: int) -> None:
    computed = [computed_pixels(count, most) for count in range(most + 1)]
    assert computed[0] == 0
    assert computed[-1] == most
    assert all(count <= of <= most for count, of in enumerate(computed))
    assert len(set(computed)) <= 4


@pytest.mark.parametrize(
    "layer",
    [conv(1 << 21, 1, 1), conv(1, 1, (1 << 20) + 1), conv(1, 1, 1, 4097)],
    ids=["channels", "plane", "kernel"],
)
def test_extents_beyond_the_kernels_are_not_supported(layer: Layer) -> None:
    assert not any(routine.supports(layer) for routine in compute_bound_routines(WIDE))


@pytest.mark.parametrize("size", [0, -1])
def test_planes_without_pixels_are_not_supported(size: int) -> None:
    layer = conv(16, 16, 8)
    empty = replace(layer, outputs=(TensorType((1, 16, size, size)),))
    assert not any(routine.supports(empty) for routine in compute_bound_routines(WIDE))
