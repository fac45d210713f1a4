"""The kernel manifest: Python and the engine read the same kernels, parameters and limits."""

from __future__ import annotations

import re

import pytest

from nnstretch.devices.base.routine import INPUT
from nnstretch.devices.cpu.manifest import (
    Parameter,
    Values,
    families,
    family,
    kernel_call,
    kernels,
    read_families,
)
from nnstretch.devices.engine.binding.library import Engine
from nnstretch.devices.engine.build import engine_library
from nnstretch.devices.engine.build.instruction_sets import Isa

COPY: dict[str, Values] = {"sizes": (1, 1, 1, 1, 2, 3), "strides": (0, 0, 0, 0, 3, 1), "first": 7, "bytes": 2}


def test_every_row_of_an_instruction_set_is_a_kernel_of_its_engine(isa: Isa) -> None:
    rows = [kernel.name for kernel in kernels().values() if kernel.is_in(isa)]
    assert sorted(rows) == sorted(Engine(engine_library.build_engine(isa)).kernel_names())


def test_kernels_are_found_by_their_tiles() -> None:
    assert family("conv_direct").kernel(pixels=14, vectors=2, kind="h") == "conv_direct_p14h2"
    assert family("winograd").kernel(alpha=6, taps=3, tiles=28, vectors=1) == "winograd_a6r3t28v1"
    assert family("conv_int8").kernel(pixels=6, vectors=2) == "conv_int8_p6v2"
    assert family("conv_int8").narrow_kernel(pixels=6, vectors=2) == "conv_int8_p6v2_narrow"
    with pytest.raises(ValueError, match="0 kernels"):
        family("depthwise_int8").narrow_kernel()
    with pytest.raises(ValueError, match="0 kernels"):
        family("conv_direct").kernel(pixels=15, vectors=2, kind="h")
    with pytest.raises(ValueError, match="2 kernels"):
        family("conv_direct").kernel(pixels=14)


def test_parameters_are_packed_in_the_kernels_order() -> None:
    call = kernel_call("strided/copy", (INPUT,), in_place=None, **COPY)
    assert call.parameters == (1, 1, 1, 1, 2, 3, 0, 0, 0, 0, 3, 1, 7, 2)
    backwards = kernel_call("strided/copy", (INPUT,), in_place=None, **dict(reversed(COPY.items())))
    assert backwards.parameters == call.parameters
    activation = {"b": 5, "a": 4, "kind": 3}
    dense = kernel_call("dense_v4", (INPUT,), m=2, n=0, k=1, activation=activation)
    assert dense.parameters == (0, 1, 2, 3, 4, 5)
    joined = kernel_call("concat/rows", (INPUT,), outer=1, offset=2, total=3, sizes=[4, 5])
    assert joined.parameters == (1, 2, 3, 4, 5)


@pytest.mark.parametrize(
    "changed",
    [
        {"first": (7,)},
        {"sizes": (1, 2)},
        {"sizes": 6},
        {"sizes": {"height": 6}},
        {"last": 7},
    ],
)
def test_values_that_do_not_fit_a_parameter_are_refused(changed: dict[str, Values]) -> None:
    with pytest.raises(ValueError, match="strided_copy"):
        kernel_call("strided/copy", (INPUT,), in_place=None, **{**COPY, **changed})
    with pytest.raises(ValueError, match="reorder_copy has the parameters count, not "):
        kernel_call("reorder/copy", (INPUT,))


def test_limits_are_those_of_the_manifest() -> None:
    assert family("conv_direct").limits("geometry", "h") == (1, 1 << 20)
    assert family("depthwise_project").limits("geometry", "pt") == (0, 1 << 12)
    assert family("reorder_layout").limits("source") == (0, 4, 8, 16)


def test_rows_are_complete() -> None:
    def leaves(parameters: tuple[Parameter, ...]) -> list[Parameter]:
        return [leaf for p in parameters for leaf in (leaves(p.group) if p.group else [p])]

    for found in families().values():
        assert found.kernels
        assert found.reads
        assert all(leaf.legal for leaf in leaves(found.parameters))


MANIFEST = """
#define MOST 8
#define PARAMETERS_f(P, A, G) P(rows, RANGE(0, MOST), BETWEEN(1, 2)) A(sizes, EACH_READ, ONE_OF(1, 2), ONE_OF(1, 2))
#define READS_f(REQUIRED, OPTIONAL) REQUIRED(X) OPTIONAL(BIAS)
#define COLUMNS_f(pixels)
#define KERNELS_f(K) K(p6, "f_p6", ANY, 6)
#define FAMILIES(F) F(f)
"""


def test_families_are_read_from_text() -> None:
    found = read_families(MANIFEST)["f"]
    assert found.parameters == (Parameter("rows", None, (0, 8)), Parameter("sizes", 0, (1, 2), among=True))
    assert found.reads == ("x", "bias")
    assert found.optional == frozenset({"bias"})
    assert found.kernel(pixels=6) == "f_p6"


def test_families_of_folders_are_read() -> None:
    text = MANIFEST.replace(
        "#define FAMILIES(F) F(f)", "#define FAMILIES_folder(F) F(f)\n#define FAMILIES(F) FAMILIES_folder(F)"
    )
    assert read_families(text) == read_families(MANIFEST)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("P(rows,", "Q(rows,", "Q(rows, RANGE(0, MOST), BETWEEN(1, 2)): expected P(name, legal, draw), A("),
        ("P(rows, ", "P(", "P(RANGE(0, MOST), BETWEEN(1, 2)): expected P(name, legal, draw)"),
        ("P(rows, RANGE(0, MOST), BETWEEN(1, 2))", "G(none, g)", "PARAMETERS_none: this list is missing"),
        ("RANGE(0, MOST)", "RANGE(0)", "P(rows, RANGE(0), BETWEEN(1, 2)): the legal values 'RANGE(0)' are neither"),
        ("RANGE(0, MOST)", "8", "P(rows, 8, BETWEEN(1, 2)): the legal values '8' are neither"),
        ("RANGE(0, MOST)", "LIKE(0, 8)", "the legal values 'LIKE(0, 8)' are neither RANGE(low, high) nor ONE_OF"),
        ("RANGE(0, MOST)", "RANGE(0, LEAST)", "'LEAST' is neither a number nor a constant"),
        ("MOST 8", "MOST 8 +", "#define MOST 8 +: '8 +' is neither a number nor a constant"),
        ("EACH_READ", "SOME", "A(sizes, SOME, ONE_OF(1, 2), ONE_OF(1, 2)): 'SOME' is neither"),
        (
            "REQUIRED(X)",
            "NEEDED(X)",
            "NEEDED(X): expected REQUIRED(name), OPTIONAL(name) or READS_list(REQUIRED, OPTIONAL)",
        ),
        ("REQUIRED(X)", "REQUIRED X", "REQUIRED X OPTIONAL(BIAS): expected NAME(arguments)"),
        ("ANY, 6", "ANYWHERE, 6", "'ANYWHERE' is none of ANY, REGISTERS_32"),
        ("ANY, 6", "ANY", "expected K(stem, name, where, pixels)"),
        ("F(f)", "F(f) F(g)", "READS_g: this list is missing"),
        ("F(f)", "G(f)", "G(f): expected F(family)"),
        ("#define FAMILIES(F) F(f)", "", "FAMILIES: this list is missing"),
        ("#define FAMILIES", "#include FAMILIES", "expected the #define of a list or of a number"),
    ],
)
def test_malformed_rows_are_named_with_file_and_problem(old: str, new: str, problem: str) -> None:
    assert old in MANIFEST
    with pytest.raises(ValueError, match=r"manifest\.h: .*" + re.escape(problem)):
        read_families(MANIFEST.replace(old, new, 1))
