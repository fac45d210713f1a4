"""Layout conversions are exact, write zeros to padding lanes, and give the same with one and two threads."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.devices.base.routine import PLAIN, REORDER, Layout, reorder_layer
from nnstretch.devices.cpu.routines import REORDER_ROUTINE
from nnstretch.graph.dtypes import QuantizationParameters
from nnstretch.graph.layer import Layer, TensorType
from tests.kits.kernels.kernel_driver import run_lowering

LAYOUTS = [Layout(block) for block in (0, 4, 8, 16)]


def reordered(
    shape: tuple[int, ...], source: Layout, target: Layout, cores: tuple[int, ...], dtype: str = "float32"
) -> None:
    """Checks values, and that padding lanes of the target are zero whatever those of the source hold."""
    layer = reorder_layer(TensorType(shape, dtype), source, target)
    assert REORDER_ROUTINE.supports(layer)
    (parameters,) = REORDER_ROUTINE.parameter_space(layer)
    assert REORDER_ROUTINE.layouts(layer, parameters) == ((source,), (target,))
    array = (50 * np.random.default_rng(5).standard_normal(shape)).astype(dtype)
    lowering = REORDER_ROUTINE.lower(layer, parameters)
    (found,) = run_lowering(lowering, layer, [array], [source], [target], cores)
    np.testing.assert_array_equal(found, array)
    wanted = target.pack(array, fill=0.0).reshape(-1)
    stored = source.pack(array).reshape(-1)
    # the same step between flat arrays shows the padding lanes too
    flat = Layer("flat", REORDER, (TensorType(stored.shape, dtype),), (TensorType(wanted.shape, dtype),))
    (found,) = run_lowering(lowering, flat, [stored], [PLAIN], [PLAIN], cores)
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("source", LAYOUTS, ids=str)
@pytest.mark.parametrize("target", LAYOUTS, ids=str)
@pytest.mark.parametrize(
    "shape",
    [(1, 1, 1, 1), (2, 35, 1, 1), (2, 16, 7, 7), (1, 33, 3, 5), (1, 5, 40, 41), (1, 48, 16, 32), (2, 3, 23, 23)],
    ids=str,
)
def test_reorder(shape: tuple[int, ...], source: Layout, target: Layout) -> None:
    for cores in ((0,), (0, 1)):
        reordered(shape, source, target, cores)
    reordered(shape, source, target, (0, 1), "int8")


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 20), st.integers(1, 20)),
    st.sampled_from(LAYOUTS),
    st.sampled_from(LAYOUTS),
    st.sampled_from(["float32", "int8", "uint8"]),
)
@settings(max_examples=90)
def test_reorder_of_any_shape(shape: tuple[int, ...], source: Layout, target: Layout, dtype: str) -> None:
    reordered(shape, source, target, (0,), dtype)


@pytest.mark.parametrize("dtype", ["int8", "float16", "int64"])
def test_plain_copies_of_any_type(dtype: str) -> None:
    tensor = TensorType((3, 5, 7), dtype)
    layer = reorder_layer(tensor, PLAIN, PLAIN)
    assert REORDER_ROUTINE.supports(layer)
    array = np.random.default_rng(5).integers(-99, 99, tensor.shape).astype(dtype)
    (parameters,) = REORDER_ROUTINE.parameter_space(layer)
    (found,) = run_lowering(REORDER_ROUTINE.lower(layer, parameters), layer, [array], [PLAIN], [PLAIN])
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("shape", [(), (5,), (3, 4), (2, 3, 4, 5, 6)], ids=str)
def test_plain_copies_of_any_rank(shape: tuple[int, ...]) -> None:
    reordered(shape, PLAIN, PLAIN, (0, 1))


@given(
    st.tuples(st.integers(1, 2), st.integers(1, 40), st.integers(1, 9), st.integers(1, 9)),
    st.sampled_from(LAYOUTS),
    st.sampled_from(LAYOUTS),
    st.sampled_from([-128, -3, 0, 127]),
)
@settings(max_examples=60, deadline=None)
def test_integers_become_floats_and_return(
    shape: tuple[int, ...], source: Layout, target: Layout, zero_point: int
) -> None:
    """Every integer is as it was; floats between two are rounded to the next."""
    rounding = QuantizationParameters(0.125, zero_point)
    tensor, floats = TensorType(shape, "int8", rounding), replace(target, dtype="float32")
    integers = np.random.default_rng(5).integers(-128, 128, shape, np.int8)
    exact = (integers.astype(np.float32) - zero_point) * np.float32(0.125)
    (found,) = converted(tensor, integers, source, floats)
    np.testing.assert_array_equal(found, integers)
    stored = TensorType(shape)
    for feed in (exact, exact + np.float32(0.05), exact - np.float32(0.05), exact * 4):
        layer = reorder_layer(tensor, floats, source)
        lowering = REORDER_ROUTINE.lower(layer, REORDER_ROUTINE.parameter_space(layer)[0])
        floating = Layer("floats", REORDER, (stored,), (tensor,))
        (found,) = run_lowering(lowering, floating, [feed], [target], [source])
        steps = np.rint(feed.astype(np.float64) / 0.125) + zero_point
        np.testing.assert_array_equal(found, np.clip(steps, -128, 127))


def converted(tensor: TensorType, array: np.ndarray, source: Layout, target: Layout) -> list[np.ndarray]:
    layer = reorder_layer(tensor, source, target)
    assert REORDER_ROUTINE.supports(layer)
    (parameters,) = REORDER_ROUTINE.parameter_space(layer)
    return run_lowering(REORDER_ROUTINE.lower(layer, parameters), layer, [array], [source], [target])


@pytest.mark.parametrize("source", LAYOUTS, ids=str)
@pytest.mark.parametrize("target", LAYOUTS, ids=str)
def test_integers_stored_as_floats_change_their_layout(source: Layout, target: Layout) -> None:
    tensor = TensorType((2, 19, 3, 5), "int8", QuantizationParameters(0.5, 3))
    integers = np.random.default_rng(5).integers(-128, 128, tensor.shape, np.int8)
    floats = [replace(layout, dtype="float32") for layout in (source, target)]
    np.testing.assert_array_equal(converted(tensor, integers, *floats)[0], integers)


def test_what_it_does_not_support() -> None:
    rounded = TensorType((1, 8, 2, 2), "int8", QuantizationParameters(0.5, 3))
    for tensor, dtype in ((rounded, "float16"), (TensorType(rounded.shape, "int8"), "float32")):
        assert not REORDER_ROUTINE.supports(reorder_layer(tensor, PLAIN, Layout(8, dtype)))
    assert not REORDER_ROUTINE.supports(reorder_layer(TensorType(rounded.shape), PLAIN, Layout(8, "float16")))
    assert not REORDER_ROUTINE.supports(reorder_layer(TensorType((1, 8, 2, 2)), PLAIN, Layout(5)))
    assert not REORDER_ROUTINE.supports(reorder_layer(TensorType((8, 2)), PLAIN, Layout(8)))
    assert not REORDER_ROUTINE.supports(reorder_layer(TensorType((1, 8, 2, 2), "float16"), PLAIN, Layout(8)))
