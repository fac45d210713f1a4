"""The manifest of kernels: what Python reads of it is what the engine is made from."""

from __future__ import annotations

import pytest

from nnstretch.devices.base.routine import Operand
from nnstretch.devices.cpu.manifest import Parameter, Values, families, family, kernel_call, kernels
from nnstretch.devices.engine.binding.library import Engine
from nnstretch.devices.engine.build import engine_library
from nnstretch.devices.engine.build.instruction_sets import Isa

INPUT, OUTPUT = Operand("input", 0), Operand("output", 0)
COPY: dict[str, Values] = {"sizes": (1, 1, 1, 1, 2, 3), "strides": (0, 0, 0, 0, 3, 1), "first": 7, "bytes": 2}


def test_every_row_of_an_instruction_set_is_a_kernel_of_its_engine(isa: Isa) -> None:
    rows = [kernel.name for kernel in kernels().values() if kernel.is_in(isa)]
    assert sorted(rows) == sorted(Engine(engine_library.build_engine(isa)).kernel_names())


def test_kernels_are_found_by_their_tiles() -> None:
    assert family("conv_direct").kernel(pixels=14, vectors=2, kind="h") == "conv_direct_p14h2"
    assert family("winograd").kernel(alpha=6, taps=3, tiles=28, vectors=1) == "winograd_a6r3t28v1"
    with pytest.raises(ValueError, match="0 kernels"):
        family("conv_direct").kernel(pixels=15, vectors=2, kind="h")
    with pytest.raises(ValueError, match="2 kernels"):
        family("conv_direct").kernel(pixels=14)


def test_parameters_are_packed_in_the_kernels_order() -> None:
    call = kernel_call("strided/copy", (INPUT,), (OUTPUT,), in_place=None, **COPY)
    assert call.parameters == (1, 1, 1, 1, 2, 3, 0, 0, 0, 0, 3, 1, 7, 2)
    backwards = kernel_call("strided/copy", (INPUT,), (OUTPUT,), in_place=None, **dict(reversed(COPY.items())))
    assert backwards.parameters == call.parameters
    activation = {"b": 5, "a": 4, "kind": 3}
    dense = kernel_call("dense_v4", (INPUT,), (OUTPUT,), m=2, n=0, k=1, activation=activation)
    assert dense.parameters == (0, 1, 2, 3, 4, 5)
    joined = kernel_call("concat/rows", (INPUT,), (OUTPUT,), outer=1, offset=2, total=3, sizes=[4, 5])
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
        kernel_call("strided/copy", (INPUT,), (OUTPUT,), in_place=None, **{**COPY, **changed})
    with pytest.raises(ValueError, match="reorder_copy has the parameters count, not "):
        kernel_call("reorder/copy", (INPUT,), (OUTPUT,))


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
        assert all(kernel.dtype == "float32" and kernel.needs == "BASELINE" for kernel in found.kernels)
