"""Hashes and argument structs of kernel sources in C against those in Python."""

from __future__ import annotations

import ctypes
import hashlib
from pathlib import Path

import numpy as np
import pytest

from nnstretch.devices.engine.build.toolchains import ENGINE_FOLDER
from nnstretch.devices.opencl.sources import kernel_files, kernel_integers, kernel_source
from tests.kits.c_libraries import c_library

FOLDER = ENGINE_FOLDER / "opencl_host" / "kernels"
CHANGES = 60
"""Changed copies of every kernel file."""


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    sources = tuple(FOLDER / name for name in ("sources.c", "sources.h", "sha256.c", "sha256.h"))
    loaded = ctypes.CDLL(str(c_library(Path(__file__).with_name("kernel_sources.c"), includes=sources)))
    loaded.kernel_integers.restype = ctypes.c_int64
    return loaded


@pytest.mark.parametrize("part", [1, 7, 64, 1000])
@pytest.mark.parametrize("size", [0, 1, 55, 56, 63, 64, 65, 119, 120, 1000])
def test_hashes(library: ctypes.CDLL, size: int, part: int) -> None:
    data = np.random.default_rng(size).integers(0, 256, size, np.uint8).tobytes()
    found = ctypes.create_string_buffer(65)
    library.sha256(data, ctypes.c_size_t(size), ctypes.c_size_t(part), found)
    assert found.value.decode() == hashlib.sha256(data).hexdigest()


def counted(library: ctypes.CDLL, text: str, kernels: dict[str, int]) -> dict[str, int]:
    """The kernels of a text that the C function knows, and their integers."""
    found = {name: library.kernel_integers(text.encode(), name.encode()) for name in kernels}
    return {name: count for name, count in found.items() if count >= 0}


@pytest.mark.parametrize("name", kernel_files())
def test_argument_structs(library: ctypes.CDLL, name: str) -> None:
    text = kernel_source(name)
    wanted = kernel_integers(text)
    assert counted(library, text, wanted) == wanted
    assert library.kernel_integers(text.encode(), b"no_such_kernel") == -1
    rng = np.random.default_rng(0)
    places = [i for i, line in enumerate(text.splitlines()) if "kernel void" in line or "typedef struct" in line]
    for _ in range(CHANGES if places else 0):
        changed = _damaged(text, int(rng.choice(places)), rng)
        assert counted(library, changed, wanted) == {k: n for k, n in kernel_integers(changed).items() if k in wanted}


def _damaged(text: str, line: int, rng: np.random.Generator) -> str:
    """The text with some characters near a line lost, doubled or replaced."""
    start = len("\n".join(text.splitlines()[:line]))
    characters = list(text)
    for _ in range(int(rng.integers(1, 4))):
        place = min(start + int(rng.integers(0, 160)), len(characters) - 1)
        characters[place] = str(rng.choice(["", characters[place] * 2, " ", "\n", ";", ",", ")", "}", "x"]))
    return "".join(characters)


def test_structs_of_structs(library: ctypes.CDLL) -> None:
    text = (
        "typedef struct {\n    int a, b;\n} pair;\ntypedef struct {\n    pair x, y;\n    int z;\n} all;\n"
        "typedef struct {\n    float f;\n} other;\n"
        "kernel void first(global int *x,\n    const all given)\n{}\nkernel void second(global int *x, const other given)\n{}\n"
    )
    assert library.kernel_integers(text.encode(), b"first") == kernel_integers(text)["first"] == 5
    assert library.kernel_integers(text.encode(), b"second") == -1
