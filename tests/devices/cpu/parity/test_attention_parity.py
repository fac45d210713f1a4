"""Attention against a float64 reference: uneven sizes, biases and masks, both forms of tokens, one and two threads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.devices.base.routine import Parameters
from nnstretch.devices.cpu.routines.attention import Attention
from nnstretch.devices.engine.build.instruction_sets import local_isa
from nnstretch.errors import PackageError
from nnstretch.graph.expand import expand
from nnstretch.graph.layer import Layer
from tests.kits.boards.cores import OWN_CORE
from tests.kits.hypothesis_examples import examples
from tests.kits.kernels.kernel_driver import run_lowering
from tests.kits.kernels.token_layers import Shape, attention_layer, attention_layers, reference_of_attention

CORES = ((OWN_CORE,), (OWN_CORE, OWN_CORE))
ROUTINE = Attention(local_isa())


def inputs_of(layer: Layer, seed: int) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 1.5, layer.type_of(i).shape).astype(np.float32) for i in layer.activations]


def run(layer: Layer, parameters: Parameters, feeds: Sequence[np.ndarray], cores: tuple[int, ...]) -> np.ndarray:
    layouts = ROUTINE.layouts(layer, parameters)
    (result,) = run_lowering(ROUTINE.lower(layer, parameters), layer, feeds, *layouts, cores)
    return result


def compare(layer: Layer, seed: int = 0) -> None:
    assert ROUTINE.supports(layer)
    feeds = inputs_of(layer, seed)
    expected = reference_of_attention(layer, feeds)
    for parameters in ROUTINE.parameter_space(layer):
        for cores in CORES:
            result = run(layer, parameters, feeds, cores)
            np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5)


@given(attention_layers(), st.integers(0, 99))
@settings(max_examples=examples(25), deadline=None)
def test_any_attention_is_that_of_float64(layer: Layer, seed: int) -> None:
    compare(layer, seed)


@pytest.mark.parametrize(
    ("sizes", "heads"), [((1, 1, 197, 197, 64, 64), 3), ((1, 4, 256, 256, 36, 36), 4), ((1, 64, 49, 49, 32, 32), 3)]
)
def test_attention_of_networks(sizes: Shape, heads: int) -> None:
    compare(attention_layer(sizes, heads=heads, groups=heads))


def test_many_keys_pass_in_tiles() -> None:
    """Keys that do not fit one tile, with maxima that grow from tile to tile."""
    layer = attention_layer((1, 1, 20, 1300, 8, 24), heads=1, groups=1, scale=1.0)
    feeds = inputs_of(layer, 1)
    feeds[1] = np.sort(feeds[1], axis=3)
    expected = reference_of_attention(layer, feeds)
    for parameters in ROUTINE.parameter_space(layer):
        result = run(layer, parameters, feeds, CORES[0])
        np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5)


HEADS = np.array([0.5, -3.0], np.float32).reshape(1, 2, 1, 1)


def test_scores_of_cosines() -> None:
    """Norms over many channels, of odd numbers of channels, and of vectors that are zero or shorter than epsilon."""
    compare(attention_layer((1, 2, 9, 31, 603, 5), heads=2, groups=2, factor=HEADS, epsilon=1e-12))
    layer = attention_layer((1, 3, 30, 700, 21, 24), heads=2, groups=1, factor=HEADS, epsilon=1.0)
    feeds = inputs_of(layer, 1)
    feeds[0][..., 3], feeds[1][..., :50], feeds[1][..., 60:80] = 0, 0, feeds[1][..., 60:80] / 64
    expected = reference_of_attention(layer, feeds)
    for parameters in ROUTINE.parameter_space(layer):
        np.testing.assert_allclose(run(layer, parameters, feeds, CORES[0]), expected, rtol=2e-5, atol=2e-5)


def test_factors_of_images() -> None:
    """Every window has its own factor: heads that are images (cross-covariance)."""
    factor = np.linspace(-2, 2, 6, dtype=np.float32).reshape(6, 1, 1, 1)
    compare(attention_layer((2, 3, 12, 12, 40, 40), heads=1, groups=1, rows=True, factor=factor, epsilon=1e-12))
    compare(attention_layer((2, 3, 5, 7, 4, 6), heads=2, groups=2, factor=factor * HEADS))


def test_factors_of_the_run_are_left_to_others() -> None:
    layer = attention_layer((1, 1, 5, 7, 4, 6), heads=2, groups=2, factor=HEADS)
    assert ROUTINE.supports(layer)
    assert not ROUTINE.supports(replace(layer, constants=MappingProxyType({})))


def test_steps_of_earlier_versions_lack_the_factor() -> None:
    """Packages hold steps without the last operand and the last three parameters."""
    bias = np.random.default_rng(0).normal(size=(1, 2, 5, 7)).astype(np.float32)
    layer = attention_layer((1, 2, 5, 7, 4, 6), heads=2, groups=2, biases=[bias])
    feeds, (parameters, *_) = inputs_of(layer, 1), ROUTINE.parameter_space(layer)
    lowering, layouts = ROUTINE.lower(layer, parameters), ROUTINE.layouts(layer, parameters)
    (call,) = lowering.calls
    earlier = replace(call, reads=call.reads[:-1], parameters=call.parameters[:-3])
    (found,) = run_lowering(replace(lowering, calls=(earlier,)), layer, feeds, *layouts)
    np.testing.assert_array_equal(found, run(layer, parameters, feeds, CORES[0]))
    for damaged in (replace(call, reads=call.reads[:-1]), replace(call, parameters=call.parameters[:-3])):
        with pytest.raises(PackageError, match="wrong number"):
            run_lowering(replace(lowering, calls=(damaged,)), layer, feeds, *layouts)


def test_masks_of_minus_infinity() -> None:
    """Masked keys have no weight."""
    mask = np.where(np.tri(40), 0, -np.inf).astype(np.float32)[None, None]
    compare(attention_layer((1, 1, 40, 40, 8, 8), heads=2, groups=2, biases=[mask]))


@pytest.mark.parametrize("keys", [20, 600])
def test_rows_without_keys_are_those_of_onnx_runtime(keys: int) -> None:
    """Minus infinity everywhere is not a number; the lowest float everywhere gives all keys the same weight."""
    mask = np.zeros((1, 1, 5, keys), np.float32)
    mask[..., 1, :], mask[..., 2, 5:], mask[..., 3, :], mask[..., 4, :-3] = (
        -np.inf,
        -np.inf,
        np.finfo(np.float32).min,
        -np.inf,
    )
    layer = attention_layer((1, 1, 5, keys, 8, 16), heads=1, groups=1, biases=[mask])
    feeds = inputs_of(layer, 3)
    session = onnxruntime.InferenceSession(expand(layer).SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {f"x{i}": feed for i, feed in enumerate(feeds)})
    assert np.isnan(expected[..., 1]).all()
    assert np.isfinite(np.delete(expected, 1, axis=3)).all()
    for parameters in ROUTINE.parameter_space(layer):
        np.testing.assert_allclose(run(layer, parameters, feeds, CORES[0]), expected, rtol=2e-5, atol=2e-5)


def test_numbers_that_are_not_finite_stay_visible() -> None:
    layer = attention_layer((1, 1, 5, 20, 8, 8), heads=1, groups=1)
    feeds = inputs_of(layer, 2)
    feeds[0][0, 3, 0, 2] = np.nan
    (parameters, *_) = ROUTINE.parameter_space(layer)
    result = run(layer, parameters, feeds, CORES[0])
    assert np.isnan(result[0, :, 0, 2]).all()
    assert np.isfinite(np.delete(result, 2, axis=3)).all()


@pytest.mark.parametrize(("rows", "epsilon"), [(False, 0.0), (True, 0.0), (False, 3.0), (True, 1e-12)])
def test_the_onnx_form_computes_the_same(rows: bool, epsilon: float) -> None:
    bias = np.random.default_rng(0).normal(size=(1, 4, 5, 7)).astype(np.float32)
    factor = np.arange(4, dtype=np.float32).reshape(1, 4, 1, 1) if epsilon else None
    biases: list[np.ndarray | Shape] = [bias, (6, 1, 1, 7)]
    sizes = (2, 3, 5, 7, 6, 3)
    layer = attention_layer(sizes, heads=4, groups=1, rows=rows, biases=biases, factor=factor, epsilon=epsilon)
    feeds = inputs_of(layer, 5)
    session = onnxruntime.InferenceSession(expand(layer).SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {f"x{i}": feed for i, feed in enumerate(feeds)})
    np.testing.assert_allclose(result, reference_of_attention(layer, feeds), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("place", ["depth", "width"])
@pytest.mark.parametrize(("channels", "is_native"), [(4096, True), (4097, False)])
def test_wider_heads_than_kernels_take_are_left_to_others(place: str, channels: int, is_native: bool) -> None:
    sizes = (1, 1, 2, 3, channels, 8) if place == "depth" else (1, 1, 2, 3, 8, channels)
    assert ROUTINE.supports(attention_layer(sizes, heads=1, groups=1)) == is_native
