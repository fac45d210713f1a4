"""Products of run-time matrices against float64: uneven sizes, broadcast images, transposed operands, one and two threads."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.devices.cpu.routines.matmul import MatMul
from nnstretch.devices.engine.build.instruction_sets import local_isa
from nnstretch.graph.activation import NO_ACTIVATION, Activation, ActivationKind
from nnstretch.graph.expand import expand
from nnstretch.graph.layer import Layer
from tests.kits.boards.cores import OWN_CORE
from tests.kits.hypothesis_examples import examples
from tests.kits.kernels.kernel_driver import run_lowering
from tests.kits.kernels.token_layers import product_layer

ROUTINE = MatMul(local_isa())


def compare(layer: Layer) -> None:
    assert ROUTINE.supports(layer)
    rng = np.random.default_rng(0)
    arrays = [layer.constants.get(i, rng.normal(size=layer.type_of(i).shape).astype(np.float32)) for i in (0, 1)]
    feeds = [arrays[i] for i in layer.activations]
    names = ("transpose_x", "transpose_y")
    x, y = (a.swapaxes(-1, -2) if layer.integer(name) else a for a, name in zip(arrays, names, strict=True))
    expected = x.astype(np.float64) @ y.astype(np.float64)
    if layer.activation.kind is ActivationKind.RELU:
        expected = np.maximum(expected, 0)
    for parameters in ROUTINE.parameter_space(layer):
        layouts = ROUTINE.layouts(layer, parameters)
        for cores in ((OWN_CORE,), (OWN_CORE, OWN_CORE)):
            (result,) = run_lowering(ROUTINE.lower(layer, parameters), layer, feeds, *layouts, cores)
            np.testing.assert_allclose(result, expected, rtol=2e-5, atol=2e-5 * x.shape[-1] ** 0.5)
    session = onnxruntime.InferenceSession(expand(layer).SerializeToString(), providers=["CPUExecutionProvider"])
    (written,) = session.run(None, {f"x{i}": feed for i, feed in enumerate(feeds)})
    np.testing.assert_allclose(written, expected, rtol=2e-4, atol=2e-4)


@given(st.data())
@settings(max_examples=examples(25), deadline=None)
def test_any_product_is_that_of_float64(data: st.DataObject) -> None:
    m, k, n = (data.draw(st.integers(1, 70)) for _ in range(3))
    images = [data.draw(st.sampled_from([(), (3,), (1,), (2, 3), (2, 1), (1, 3)])) for _ in range(2)]
    transposed = data.draw(st.booleans()), data.draw(st.booleans())
    activation = data.draw(st.sampled_from([NO_ACTIVATION, Activation(ActivationKind.RELU)]))
    compare(product_layer((images[0], images[1]), (m, k, n), transposed=transposed, activation=activation))


@pytest.mark.parametrize("transposed", [(False, False), (True, True)])
def test_matrices_that_are_packed_in_tiles(transposed: tuple[bool, bool]) -> None:
    compare(product_layer(((), (2,)), (20, 1100, 600), transposed=transposed))


def test_a_constant_per_image() -> None:
    constant = np.random.default_rng(1).normal(size=(4, 9, 17)).astype(np.float32)
    compare(product_layer(((4,), (4,)), (5, 9, 17), constant=constant))


def test_images_that_broadcast_in_three_dimensions_are_not_taken() -> None:
    assert not ROUTINE.supports(product_layer(((2, 1, 2), (1, 3, 1)), (2, 2, 2)))


@pytest.mark.parametrize(("length", "is_native"), [(1 << 20, True), ((1 << 20) + 1, False)])
def test_longer_sums_than_kernels_take_are_left_to_others(length: int, is_native: bool) -> None:
    for transposed in ((False, False), (True, True)):
        layer = product_layer(((), ()), (2, length, 3), transposed=transposed)
        assert ROUTINE.supports(layer) == is_native
