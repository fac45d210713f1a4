"""Layout conversions are exact, write zeros to padding lanes, and give the same with one and two threads."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.devices.base.routine import PLAIN, REORDER, Layout, reorder_layer
from nnstretch.devices.cpu.routines import REORDER_ROUTINE
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


def test_what_it_does_not_support() -> None:
    assert not REORDER_ROUTINE.supports(reorder_layer(TensorType((1, 8, 2, 2)), PLAIN, Layout(5)))
    assert not REORDER_ROUTINE.supports(reorder_layer(TensorType((8, 2)), PLAIN, Layout(8)))
    assert not REORDER_ROUTINE.supports(reorder_layer(TensorType((1, 8, 2, 2), "float16"), PLAIN, Layout(8)))
