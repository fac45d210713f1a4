"""Changes of the element type, against numpy: every float16 and bfloat16, and bits of all kinds of float32."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest

import nnstretch as nns
from nnstretch.devices.base.routine import PLAIN, Routine
from nnstretch.devices.cpu.routines.cast import CastRoutine
from nnstretch.graph.layer import Layer, TensorType
from tests.kits.boards.cores import OWN_CORE
from tests.kits.kernels.kernel_driver import run_lowering

EVERY = np.arange(1 << 16, dtype=np.uint16)
INTEGERS = np.random.default_rng(4).integers(-(1 << 62), 1 << 62, 40_000)


def some_floats() -> np.ndarray:
    """Random bits, what lies half way between two float16 or two bfloat16, its neighbours, and special values."""
    draws = np.random.default_rng(3)
    halves = EVERY.view(np.float16).astype(np.float32).view(np.uint32) + (1 << 12)
    ties = np.concatenate([halves, EVERY.astype(np.uint32) << 16 | 1 << 15])
    least = np.arange(1, 4 << 10, dtype=np.float32) * np.float32(2.0**-25)  # denormal float16, and half way between
    numbers = np.array([0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.996, 65520, 65536, 1e30, 3e38], np.float32)
    bits = [draws.integers(0, 1 << 32, 100_000).astype(np.uint32), ties, ties + 1, ties - 1]
    return np.concatenate([*(one.view(np.float32) for one in bits), least, -least, numbers])


def layer_of(source: str, result: str, size: int) -> Layer:
    return Layer("tested", "Cast", (TensorType((size,), source),), (TensorType((size,), result),))


def cast(routines: Sequence[Routine], source: np.ndarray, names: tuple[str, str]) -> np.ndarray:
    layer = layer_of(*names, source.size)
    (routine,) = (one for one in routines if one.supports(layer))
    assert isinstance(routine, CastRoutine)
    (found,) = run_lowering(routine.lower(layer, {}), layer, [source], (PLAIN,), (PLAIN,))
    return found


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_every_short_float_becomes_its_float32(name: str, routines: Sequence[Routine]) -> None:
    type_ = np.float16 if name == "float16" else ml_dtypes.bfloat16
    source = EVERY.view(np.float16) if name == "float16" else EVERY
    with np.errstate(invalid="ignore"):
        wanted = EVERY.view(type_).astype(np.float32)
    found = cast(routines, source, (name, "float32"))
    np.testing.assert_array_equal(found, wanted)  # NaN is NaN
    finite = np.isfinite(wanted)
    assert (np.signbit(found) == np.signbit(wanted))[finite].all()


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_float32_is_rounded_to_nearest_even(name: str, routines: Sequence[Routine]) -> None:
    source = some_floats()
    type_ = np.float16 if name == "float16" else ml_dtypes.bfloat16
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = source.astype(type_)
    found = cast(routines, source, ("float32", name)).view(type_)
    numbers = ~np.isnan(source)
    np.testing.assert_array_equal(found[numbers].view(np.uint16), wanted[numbers].view(np.uint16))
    assert np.isnan(found[~numbers].astype(np.float32)).all()


@pytest.mark.parametrize("name", ["uint8", "bool", "int32", "int64"])
def test_integers_become_the_nearest_float32(name: str, routines: Sequence[Routine]) -> None:
    source = INTEGERS % 2 == 0 if name == "bool" else INTEGERS.astype(name)
    found = cast(routines, source, (name, "float32"))
    np.testing.assert_array_equal(found, source.astype(np.float32))


def test_bytes_have_the_whole_part(routines: Sequence[Routine]) -> None:
    """The lowest byte of the number without its fraction; 0 for what int32 does not hold."""
    source = np.concatenate([some_floats(), np.linspace(-300, 600, 5000, dtype=np.float32)])
    is_held = np.abs(source) < 2.0**31  # False for NaN
    whole = np.where(is_held, source, 0).astype(np.int64)
    np.testing.assert_array_equal(cast(routines, source, ("float32", "uint8")), (whole & 0xFF).astype(np.uint8))


def test_other_types_are_left_to_other_engines(routines: Sequence[Routine]) -> None:
    for names in (("float32", "int32"), ("float64", "float32"), ("float16", "bfloat16"), ("int8", "float32")):
        assert not any(one.supports(layer_of(*names, 4)) for one in routines)


@pytest.mark.parametrize("name", ["uint8", "bool", "float16", "int64"])
def test_networks_that_read_other_types_run_on_our_kernels(name: str) -> None:
    """An image in bytes, scaled and convolved."""
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(name))
    text = f"""<ir_version: 9, opset_import: ["" : 17]> g ({onnx.TensorProto.DataType.Name(kind).lower()}[1,3,8,8] x)
        => (float[1,2,6,6] y) <float[2,3,3,3] w = {{{", ".join(str(i % 7 - 3.5) for i in range(54))}}}> {{
            f = Cast <to = 1> (x)
            y = Conv (f, w)
        }}"""
    x = np.random.default_rng(0).integers(0, 2, (1, 3, 8, 8)).astype(name)
    proto = onnx.parser.parse_model(text)
    with nns.compile(ir.from_proto(proto), processors=f"cpu:{OWN_CORE}", tune=False) as session:
        assert not session.plan.fallback_layers
        (found,) = session.run(None, {"x": x})
    (wanted,) = onnx.reference.ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_allclose(found, np.asarray(wanted, np.float32), atol=1e-4)
