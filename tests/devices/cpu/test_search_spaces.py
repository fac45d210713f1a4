"""Search spaces of a thorough search: default settings first, no duplicates, and every setting computes the right answer."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.devices.base.routine import Routine, distinct, shares
from nnstretch.devices.engine.build.instruction_sets import ISAS, Isa
from nnstretch.graph.layer import Layer, fused_pair
from tests.kits.kernels.convolution_parity import check_setting, conv_layer, feeds_of, reference
from tests.kits.kernels.cpu_routines import compute_bound_routines

TOLERANCE = 1e-3  # of the largest tiles of Winograd's; what a network may use is decided when it is tuned


def conv(channels: int, outputs: int, size: int, kernel: int = 1, groups: int = 1) -> Layer:
    pads = (kernel // 2,) * 2
    return conv_layer((1, channels, size, size), outputs, (kernel, kernel), pads=(*pads, *pads), groups=groups)


LAYERS = {
    "pointwise": conv(112, 64, 9),
    "narrow": conv(3, 32, 20, 3),
    "square": conv(40, 48, 12, 3),
    "five": conv(32, 32, 14, 5),
    "grouped": conv(48, 48, 7, 3, groups=2),
    "depthwise": conv(32, 32, 11, 3, groups=32),
    "expand": fused_pair(conv(16, 48, 10), conv(48, 48, 10, 3, groups=48)),
    "project": fused_pair(conv(48, 48, 10, 5, groups=48), conv(48, 24, 10)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("isa", ISAS, ids=[one.name for one in ISAS])
def test_usual_settings_come_first_and_none_twice(isa: Isa, name: str) -> None:
    layer = LAYERS[name]
    supporting = [routine for routine in compute_bound_routines(isa) if routine.supports(layer)]
    assert supporting
    for routine in supporting:
        usual, space = list(routine.parameter_space(layer)), list(routine.search_space(layer))
        assert routine.default_parameters(layer) == usual[0]
        assert space[: len(usual)] == usual
        assert len({tuple(sorted(setting.items())) for setting in space}) == len(space)
        assert all(set(setting) == set(usual[0]) for setting in space)
    assert sum(len(routine.search_space(layer)) for routine in supporting) > 6


@pytest.mark.parametrize("name", LAYERS)
def test_every_setting_computes_the_layer(routines: Sequence[Routine], name: str) -> None:
    layer = LAYERS[name]
    wanted = reference(layer, feeds_of(layer))
    for routine in routines:
        if not routine.supports(layer):
            continue
        for parameters in routine.search_space(layer):
            check_setting(routine, layer, parameters, wanted, tolerance=TOLERANCE)


@given(total=st.integers(1, 5000), most=st.integers(1, 200))
def test_shares_are_parts_of_the_whole(total: int, most: int) -> None:
    sizes = shares(total, most)
    assert sizes[0] == total
    assert sizes == sorted(set(sizes), reverse=True)
    assert all(1 <= size <= total and -(-total // size) <= most for size in sizes)


def test_distinct_keeps_the_first() -> None:
    assert distinct([{"a": 1, "b": 2}, {"a": 2, "b": 2}], [{"b": 2, "a": 1}, {"a": 3, "b": 0}]) == (
        {"a": 1, "b": 2},
        {"a": 2, "b": 2},
        {"a": 3, "b": 0},
    )
