"""Recurrent layers against a float64 reference: uneven sizes, directions, first states, all forms, one and two threads."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.devices.cpu.routines.recurrence import Recurrence
from nnstretch.devices.engine.build.instruction_sets import local_isa
from nnstretch.graph.expand import expand
from nnstretch.graph.layer import Layer
from tests.kits.boards.cores import OWN_CORE
from tests.kits.hypothesis_examples import examples
from tests.kits.kernels.kernel_driver import run_lowering
from tests.kits.kernels.recurrent_layers import GATES, Shape, recurrent_layer, recurrent_layers, reference_of_recurrence

CORES = ((OWN_CORE,), (OWN_CORE, OWN_CORE))
ROUTINE = Recurrence(local_isa())


def inputs_of(layer: Layer, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.normal(0, 1.5, layer.type_of(i).shape).astype(np.float32) for i in layer.activations]


def compare(layer: Layer, seed: int = 0) -> None:
    assert ROUTINE.supports(layer)
    feeds = inputs_of(layer, seed)
    expected = reference_of_recurrence(layer, feeds)
    for parameters in ROUTINE.parameter_space(layer):
        layouts = ROUTINE.layouts(layer, parameters)
        for cores in CORES:
            (result,) = run_lowering(ROUTINE.lower(layer, parameters), layer, feeds, *layouts, cores)
            np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5)


@given(recurrent_layers(), st.integers(0, 99))
@settings(max_examples=examples(40), deadline=None)
def test_any_recurrence_is_that_of_float64(layer: Layer, seed: int) -> None:
    compare(layer, seed)


@pytest.mark.parametrize("cell", sorted(GATES))
@pytest.mark.parametrize(
    ("steps", "sequences", "hidden"), [(1, 1, 1), (2, 3, 5), (3, 1, 17), (9, 70, 16), (5, 13, 100)]
)
def test_awkward_sizes(cell: str, steps: int, sequences: int, hidden: int) -> None:
    compare(recurrent_layer(cell, (steps, sequences), hidden))
    compare(recurrent_layer(cell, (1, sequences, steps), hidden, axis=3))


@pytest.mark.parametrize("cell", sorted(GATES))
@pytest.mark.parametrize(("pixels", "axis"), [((5, 6), 0), ((6, 5), 1), ((2, 5, 3), 2), ((2, 3, 5), 3)])
def test_the_onnx_form_computes_the_same(cell: str, pixels: Shape, axis: int) -> None:
    states = ["constant", "input"][: 2 if cell == "lstm" else 1]
    layer = recurrent_layer(cell, pixels, 7, axis=axis, states=states)
    feeds = inputs_of(layer)
    session = onnxruntime.InferenceSession(expand(layer).SerializeToString(), providers=["CPUExecutionProvider"])
    (result,) = session.run(None, {f"x{i}": feed for i, feed in enumerate(feeds)})
    np.testing.assert_allclose(result, reference_of_recurrence(layer, feeds), rtol=2e-5, atol=2e-5)


def test_numbers_that_are_not_finite_stay_in_their_sequence() -> None:
    layer = recurrent_layer("lstm", (4, 8), 20, direction="forward")
    feeds = inputs_of(layer)
    feeds[0][1, 3] = np.nan
    (parameters, *_) = ROUTINE.parameter_space(layer)
    (result,) = run_lowering(ROUTINE.lower(layer, parameters), layer, feeds, *ROUTINE.layouts(layer, parameters))
    assert np.isnan(result[1:, 3]).all()
    assert np.isfinite(np.delete(result, 3, axis=1)).all()


def test_two_threads_share_one_sequence_by_its_directions() -> None:
    assert [dict(one) for one in ROUTINE.parameter_space(recurrent_layer("lstm", (8, 1), 16))] == [{"chunk": 1}]
    many = ROUTINE.parameter_space(recurrent_layer("lstm", (8, 32), 16))
    assert many[0] == {"chunk": 16}
    assert all(1 <= one["chunk"] <= 64 for one in ROUTINE.parameter_space(recurrent_layer("gru", (8, 999), 16)))


def test_what_it_does_not_support() -> None:
    layer = recurrent_layer("lstm", (4, 8), 20)
    without = MappingProxyType({key: value for key, value in layer.constants.items() if key != 1})
    assert not ROUTINE.supports(replace(layer, constants=without))
    assert not ROUTINE.supports(replace(layer, op="Attention"))
    half = replace(layer.outputs[0], dtype="float16")
    assert not ROUTINE.supports(replace(layer, outputs=(half,)))


@pytest.mark.parametrize(("steps", "is_native"), [(1 << 20, True), ((1 << 20) + 1, False)])
def test_more_steps_than_kernels_take_are_left_to_others(steps: int, is_native: bool) -> None:
    assert ROUTINE.supports(recurrent_layer("lstm", (steps, 1), 4)) == is_native
