"""Prepared constants: equal for any destination, number of threads and number of pieces."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnstretch.devices.algorithms.winograd import Axis, Division, prepared_panels, weight_panels
from nnstretch.devices.base.constants import Piece, Prepared, whole, write_constants
from nnstretch.devices.cpu.routines import native_routines
from nnstretch.devices.engine.build.instruction_sets import ISAS
from nnstretch.devices.opencl.routines import Traits, routines
from nnstretch.graph.layer import Layer, TensorType


def counting(size: int, pieces: int) -> Prepared:
    """0, 1, 2, … in pieces."""

    def fill(begin: int, place: np.ndarray) -> None:
        place[:] = np.arange(begin, begin + place.size)

    ends = [size * i // pieces for i in range(pieces + 1)]
    return Prepared(size, [Piece(b, e - b, partial(fill, b)) for b, e in itertools.pairwise(ends)])


@pytest.mark.parametrize("threads", [1, 3])
def test_constants_are_written_to_their_places(threads: int) -> None:
    made, plain = counting(1000, 7), np.arange(6, dtype=np.float16).reshape(2, 3)
    memory = np.zeros(4096 + 64, np.uint8)
    write_constants([(made, memory[64:4064]), (plain, memory[:12])], threads)
    assert memory[64:4064].view(np.float32).tolist() == list(range(1000))
    assert memory[:12].tobytes() == plain.tobytes()
    assert not memory[12:64].any()
    assert not memory[4064:].any()


def test_a_prepared_constant_converts_to_an_array() -> None:
    made = counting(10, 3)
    assert made.nbytes == 40
    assert np.asarray(made).tolist() == list(range(10))
    assert np.asarray(made, np.float64).dtype == np.float64
    assert np.asarray(whole(6, lambda: np.ones((2, 3)))).tolist() == [1.0] * 6


@pytest.mark.parametrize("threads", [1, 2])
def test_an_error_in_a_thread_is_raised(threads: int) -> None:
    with pytest.raises(ValueError, match="broadcast"):
        write_constants([(whole(6, lambda: np.ones(5)), np.zeros(24, np.uint8))], threads)


@given(
    outputs=st.integers(1, 70),
    channels=st.integers(1, 40),
    kernel=st.tuples(st.integers(1, 5), st.integers(1, 5)).filter(lambda k: max(k) > 1),
    stride=st.integers(1, 2),
    transform=st.sampled_from([(4, 2), (4, 3), (6, 3), (8, 3), (8, 5)]),
    vectors=st.integers(1, 2),
)
def test_weights_are_encoded_in_pieces_as_in_one(
    outputs: int,
    channels: int,
    kernel: tuple[int, int],
    stride: int,
    transform: tuple[int, int],
    vectors: int,
) -> None:
    alpha, taps = transform
    down, across = (Axis(k, stride, alpha, taps) for k in kernel)
    division, block = Division(down, across), 8
    outputs = -(-outputs // (vectors * block)) * vectors * block - (outputs % block if vectors == 1 else 0)
    weight = np.random.default_rng(0).standard_normal((outputs, channels, *kernel)).astype(np.float32)
    expected = weight_panels(weight, 1, vectors * block, block, division, halved=False)
    made = prepared_panels(weight, 1, vectors * block, block, division, halved=False)
    np.testing.assert_allclose(np.asarray(made), expected.reshape(-1), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (1, 1), (5, 2)])
def test_equal_recipes_are_equal_values(kernel: int, stride: int) -> None:
    """Of all routines and settings for a layer, on the CPU and with OpenCL."""
    weight = np.random.default_rng(0).standard_normal((48, 32, kernel, kernel)).astype(np.float32)
    side, pad = -(-12 // stride), kernel // 2
    layer = Layer(
        "c",
        "Conv",
        (TensorType((1, 32, 12, 12)), TensorType(weight.shape)),
        (TensorType((1, 48, side, side)),),
        {"strides": (stride, stride), "pads": (pad,) * 4, "dilations": (1, 1), "groups": 1},
        constants={1: weight},
    )
    isa = next(isa for isa in ISAS if isa.block == 8)
    known: dict[object, bytes] = {}
    shared = 0
    for routine in (*native_routines(isa), *routines(Traits(8, True, 1, 16))):
        for parameters in routine.search_space(layer)[:60] if routine.supports(layer) else ():
            for constant in routine.lower(layer, parameters).constants:
                if isinstance(constant, Prepared) and constant.recipe is not None:
                    shared += constant.recipe in known
                    content = np.asarray(constant).tobytes()
                    assert known.setdefault(constant.recipe, content) == content, routine.descriptor
    assert shared


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["int8", "float16", "int64"])
def test_constants_of_other_types(dtype: str, threads: int) -> None:
    values = np.arange(6).astype(dtype)
    constant = whole(6, lambda: values, dtype)
    assert constant.nbytes == values.nbytes
    assert np.asarray(constant).dtype == dtype
    place = np.zeros(constant.nbytes, np.uint8)
    write_constants([(constant, place)], threads)
    np.testing.assert_array_equal(place.view(dtype), values)
