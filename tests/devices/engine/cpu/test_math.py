"""The vector functions of the engine's headers, compiled by themselves for every block that this machine can run."""

from __future__ import annotations

import ctypes
import math
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from nnstretch.devices.engine.build.instruction_sets import BuildTarget, Isa
from nnstretch.devices.engine.build.toolchains import ENGINE_FOLDER, FLAGS, make_toolchain, zig_cc
from nnstretch.graph.activation import ActivationKind, float_bits

SOURCE = """
#include "vectors/kernel.h"
#define EXPORT __attribute__((visibility("default")))
EXPORT void map(int64_t function, const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i += NNS_BLOCK)
        nns_store(y + i, function ? nns_tanh(nns_load(x + i)) : nns_exp(nns_load(x + i)));
}
EXPORT void activate(const int64_t *words, float *x, int64_t n) {
    nns_activate_rows(x, (const int64_t[]){0}, 1, n, nns_activation_read(words));
}
EXPORT int64_t bytes(int64_t a, int64_t b, int64_t c) { return NNS_FLOAT_BYTES(a, b, c); }
EXPORT void some(const float *x, float *y, int64_t n) { nns_store_some(y, nns_load_some(x, n, 7.0f), n); }
EXPORT float lanes(const float *x, int64_t largest) {
    return largest ? nns_max_lanes(nns_load(x)) : nns_sum_lanes(nns_load(x));
}
"""
FLOATS = ctypes.POINTER(ctypes.c_float)


@pytest.fixture(scope="module")
def functions(isa: Isa, tmp_path_factory: pytest.TempPathFactory) -> tuple[ctypes.CDLL, int]:
    directory = tmp_path_factory.mktemp("math")
    source, library = directory / "math.c", directory / "math.so"
    source.write_text(SOURCE)
    includes = [f"-I{ENGINE_FOLDER / name}" for name in ("include", "runtime")]
    flags = [*FLAGS, *isa.zig_flags, f"-DNNS_BLOCK={isa.block}", *includes]
    pieces = ENGINE_FOLDER / "runtime" / "vectors" / "pieces.c"
    compiled = []
    for file in (source, pieces):
        compiled.append(directory / f"{file.stem}.o")
        subprocess.run([*zig_cc(), *flags, "-c", str(file), "-o", str(compiled[-1])], check=True, cwd=directory)
    # Linked as engines are: zig would compile its runtime library for every CPU.
    flags = ["-shared", *make_toolchain(BuildTarget(isa)).link_flags]
    subprocess.run([*zig_cc(), *map(str, compiled), "-o", str(library), *flags], check=True, cwd=directory)
    loaded = ctypes.CDLL(str(library))
    loaded.bytes.restype = ctypes.c_int64
    loaded.bytes.argtypes = [ctypes.c_int64] * 3
    loaded.lanes.restype = ctypes.c_float
    return loaded, isa.block


def pointer(array: np.ndarray) -> ctypes._Pointer[ctypes.c_float]:
    return array.ctypes.data_as(FLOATS)


def mapped(functions: tuple[ctypes.CDLL, int], function: int, x: np.ndarray) -> np.ndarray:
    padded = np.zeros(-(-x.size // 16) * 16, np.float32)
    padded[: x.size] = x
    y = np.empty_like(padded)
    functions[0].map(ctypes.c_int64(function), pointer(padded), pointer(y), ctypes.c_int64(padded.size))
    return y[: x.size]


def test_exp_is_accurate_wherever_the_result_is_a_normal_float(functions: tuple[ctypes.CDLL, int]) -> None:
    x = np.concatenate([np.linspace(-87.33, 88.72, 400_001), np.linspace(-1e-3, 1e-3, 1001)]).astype(np.float32)
    wanted = np.exp(x.astype(np.float64))
    assert np.abs(mapped(functions, 0, x) / wanted - 1).max() < 2e-7


def test_exp_of_extremes_is_finite_and_positive_and_keeps_nan(functions: tuple[ctypes.CDLL, int]) -> None:
    x = np.array([-np.inf, -3.4e38, -1e4, -88, 0, 88.8, 1e4, 3.4e38, np.inf, np.nan], np.float32)
    y = mapped(functions, 0, x)
    assert np.isfinite(y[:-1]).all()
    assert (y[:-1] > 0).all()
    assert (np.diff(y[:-1]) >= 0).all()
    assert y[4] == 1
    assert np.isnan(y[-1])


def test_tanh_is_accurate(functions: tuple[ctypes.CDLL, int]) -> None:
    x = np.concatenate([np.linspace(-12, 12, 200_001), np.linspace(-0.7, 0.7, 50_001)]).astype(np.float32)
    wanted = np.tanh(x.astype(np.float64))
    error = np.abs(mapped(functions, 1, x) - wanted) / np.maximum(np.abs(wanted), 1e-30)
    assert error.max() < 5e-7


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x > -700 else 0.0


def softplus(x: float) -> float:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


REFERENCES: dict[ActivationKind, Callable[[float, float, float], float]] = {
    ActivationKind.NONE: lambda x, _a, _b: x,
    ActivationKind.RELU: lambda x, _a, _b: max(x, 0.0),
    ActivationKind.CLIP: lambda x, a, b: min(max(x, a), b),
    ActivationKind.SIGMOID: lambda x, _a, _b: sigmoid(x),
    ActivationKind.SILU: lambda x, _a, _b: x * sigmoid(x),
    ActivationKind.HARD_SIGMOID: lambda x, a, b: min(max(a * x + b, 0.0), 1.0),
    ActivationKind.HARD_SWISH: lambda x, _a, _b: x * min(max(x / 6 + 0.5, 0.0), 1.0),
    ActivationKind.LEAKY_RELU: lambda x, a, _b: a * x if x < 0 else x,
    ActivationKind.TANH: lambda x, _a, _b: math.tanh(x),
    ActivationKind.EXP: lambda x, _a, _b: math.exp(min(x, float(np.float32(88.72283)))),
    ActivationKind.GELU: lambda x, _a, _b: x * 0.5 * math.erfc(-x / math.sqrt(2)),
    ActivationKind.GELU_TANH: lambda x, _a, _b: x * sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)),
    ActivationKind.SWISH: lambda x, a, _b: x * sigmoid(a * x),
    ActivationKind.MISH: lambda x, _a, _b: x * math.tanh(softplus(x)),
    ActivationKind.SOFTPLUS: lambda x, _a, _b: softplus(x),
    ActivationKind.ELU: lambda x, a, b: a * math.expm1(b * x) if x < 0 else x,
    ActivationKind.SELU: lambda x, a, b: b * (a * math.expm1(x) if x < 0 else x),
    ActivationKind.ERF: lambda x, _a, _b: math.erf(x),
}
CONSTANTS = {
    ActivationKind.CLIP: (-0.5, 6.0),
    ActivationKind.HARD_SIGMOID: (0.2, 0.5),
    ActivationKind.SWISH: (1.702, 0.0),
    ActivationKind.ELU: (0.75, 1.25),
    ActivationKind.SELU: (1.6732632, 1.050701),
}


@pytest.mark.parametrize("kind", list(ActivationKind), ids=lambda kind: kind.name)
@pytest.mark.parametrize("count", [0, 1, 3, 15, 16, 17, 1000])
def test_activations(functions: tuple[ctypes.CDLL, int], kind: ActivationKind, count: int) -> None:
    a, b = CONSTANTS.get(kind, (0.01, 0.0))
    x = np.random.default_rng(int(kind)).uniform(-9, 9, count + 1).astype(np.float32)
    if count > 4:
        x[:4] = (0, -0.0, 100, -100)
    y = x.copy()
    words = (ctypes.c_int64 * 3)(int(kind), float_bits(a), float_bits(b))
    functions[0].activate(words, pointer(y), ctypes.c_int64(count))
    wanted = [REFERENCES[kind](float(v), a, b) for v in x[:count]]
    np.testing.assert_allclose(y[:count], wanted, rtol=5e-7, atol=1e-7)
    assert y[count] == x[count], "wrote after the end"


EXACT_TO = {
    ActivationKind.TANH: (3.0e-7, 0.0),
    ActivationKind.ERF: (4e-7, 0.0),
    ActivationKind.SILU: (5e-7, 1.2e-8),
    ActivationKind.GELU: (1e-6, 1.2e-8),
    ActivationKind.GELU_TANH: (6e-7, 1e-7),
    ActivationKind.SOFTPLUS: (4e-7, 1e-37),
    ActivationKind.MISH: (6e-7, 1e-35),
    ActivationKind.ELU: (4e-7, 0.0),
    ActivationKind.SELU: (4e-7, 0.0),
}
"""Kind -> largest relative error, and largest absolute error beside it."""


@pytest.mark.parametrize("kind", list(EXACT_TO), ids=lambda kind: kind.name)
def test_activations_are_accurate_over_all_exponents(functions: tuple[ctypes.CDLL, int], kind: ActivationKind) -> None:
    near = np.concatenate([np.linspace(-12, 12, 40_000), np.linspace(-90, 90, 5_000)])
    sizes = np.float64(2.0) ** np.linspace(-125, 60, 4_000)
    x = np.concatenate([near, sizes, -sizes]).astype(np.float32)
    x = np.concatenate([x, np.zeros(-x.size % 16, np.float32)])
    a, b = (float(np.float32(value)) for value in CONSTANTS.get(kind, (0.0, 0.0)))
    y = x.copy()
    words = (ctypes.c_int64 * 3)(int(kind), float_bits(a), float_bits(b))
    functions[0].activate(words, pointer(y), ctypes.c_int64(x.size))
    wanted = np.array([REFERENCES[kind](float(value), a, b) for value in x])
    relative, absolute = EXACT_TO[kind]
    excess = np.abs(y - wanted) - relative * np.abs(wanted) - absolute
    assert excess.max() <= 0, (x[excess.argmax()], y[excess.argmax()], wanted[excess.argmax()])


@pytest.mark.parametrize("kind", list(ActivationKind), ids=lambda kind: kind.name)
def test_activations_of_infinities_are_the_limits(functions: tuple[ctypes.CDLL, int], kind: ActivationKind) -> None:
    a, b = CONSTANTS.get(kind, (0.01, 0.0))
    y = np.array([-np.inf, np.inf] * 8, np.float32)
    functions[0].activate((ctypes.c_int64 * 3)(int(kind), float_bits(a), float_bits(b)), pointer(y), ctypes.c_int64(16))
    low = -np.inf if kind in (ActivationKind.NONE, ActivationKind.LEAKY_RELU) else REFERENCES[kind](-80.0, a, b)
    if kind is ActivationKind.HARD_SWISH:
        low = y[0]  # -inf times 0
    high = REFERENCES[kind](80.0, a, b)
    high = high if high <= 6 else y[1] if kind is ActivationKind.EXP else np.inf
    np.testing.assert_allclose(y[:2], [low, high], rtol=1e-6, atol=1e-7)


def test_activations_keep_nan(functions: tuple[ctypes.CDLL, int]) -> None:
    for kind in ActivationKind:
        y = np.full(16, np.nan, np.float32)
        functions[0].activate((ctypes.c_int64 * 3)(int(kind), 0, float_bits(1.0)), pointer(y), ctypes.c_int64(16))
        assert np.isnan(y).all(), kind


def test_sizes_that_overflow_are_no_sizes(functions: tuple[ctypes.CDLL, int]) -> None:
    size = functions[0].bytes
    assert size(2, 3, 5) == 120
    assert size(0, 3, 5) == 0
    for wrong in ((-1, 3, 5), (3, -1, -1), (1 << 62, 1, 1), (1 << 40, 1 << 40, 0), (1 << 31, 1 << 31, 1)):
        assert size(*wrong) == -1


def test_partial_vectors_and_sums_of_lanes(functions: tuple[ctypes.CDLL, int]) -> None:
    library, block = functions
    x = np.arange(1, block + 1, dtype=np.float32)
    for n in range(block + 1):
        y = np.zeros(block, np.float32)
        exact = x[:n].copy()
        library.some(pointer(exact), pointer(y), ctypes.c_int64(n))
        assert np.array_equal(y, np.where(np.arange(block) < n, x, 0))
    assert library.lanes(pointer(x), ctypes.c_int64(0)) == x.sum()
    assert library.lanes(pointer(x), ctypes.c_int64(1)) == block


def test_headers_stand_by_themselves(tmp_path: Path) -> None:
    for header in sorted((ENGINE_FOLDER / "runtime").rglob("*.h")):
        command = [*zig_cc(), *FLAGS, "-D_GNU_SOURCE", "-DNNS_BLOCK=4"]
        includes = [f"-I{ENGINE_FOLDER / name}" for name in ("include", "runtime")]
        text = f'#include "{header}"\nextern int nns_stands;\nint nns_stands;\n'
        done = subprocess.run(
            [*command, *includes, "-c", "-x", "c", "-", "-o", str(tmp_path / "header.o")],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
