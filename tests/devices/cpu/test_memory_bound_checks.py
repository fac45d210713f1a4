"""Memory-bound kernels refuse steps that would leave their buffers; each case changes one parameter or size."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnstretch.devices.base.routine import Layout, Lowering, reorder_layer
from nnstretch.devices.cpu.routines import REORDER_ROUTINE
from nnstretch.devices.engine.build.instruction_sets import local_isa
from nnstretch.errors import PackageError
from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.graph.layer import Layer, TensorType
from tests.kits.boards.cores import OWN_CORE
from tests.kits.kernels.cpu_routines import memory_bound_routines
from tests.kits.kernels.kernel_driver import run_lowering

BLOCK = local_isa().block
RELU = Activation(ActivationKind.RELU)
X = TensorType((2, 11, 6, 5))
CHANNELS = TensorType((11,))
PER_CHANNEL = {1: np.ones(11, np.float32), 2: np.ones(11, np.float32)}
WINDOW = {"kernel": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1)}
RESIZE = {"coordinates": "asymmetric", "nearest": "floor", "scales": (2.0, 2.0)}


def _layer(
    op: str,
    inputs: tuple[TensorType, ...],
    output: TensorType,
    attributes: dict[str, object],
    constants: dict[int, np.ndarray],
) -> Layer:
    return Layer(op, op, inputs, (output,), MappingProxyType(attributes), RELU, MappingProxyType(constants))  # type: ignore[arg-type]


LAYERS = {
    "pool": _layer("MaxPool", (X,), TensorType((2, 11, 3, 3)), {**WINDOW, "dilations": (1, 1)}, {}),
    "average": _layer("AveragePool", (X,), TensorType((2, 11, 3, 3)), {**WINDOW, "count_include_pad": 1}, {}),
    "global": _layer("GlobalPool", (X,), TensorType((2, 11, 1, 1)), {"mode": "max"}, {}),
    "activation": _layer("Activation", (X,), X, {}, {}),
    "add": _layer("Add", (X, X), X, {}, {}),
    "scale": _layer("Mul", (X, TensorType((2, 11, 1, 1))), X, {}, {}),
    "affine": _layer("Affine", (X, CHANNELS, CHANNELS), X, {}, PER_CHANNEL),
    "concat": _layer("Concat", (X, X, X), TensorType((2, 33, 6, 5)), {"axis": 1}, {}),
    "rows": _layer("Concat", (X, X), TensorType((2, 11, 12, 5)), {"axis": 2}, {}),
    "prelu": _layer("PRelu", (X, CHANNELS), X, {}, {1: PER_CHANNEL[1]}),
    "layer norm": _layer("LayerNorm", (X, CHANNELS, CHANNELS), X, {"axis": 1, "epsilon": 1e-5}, PER_CHANNEL),
    "rows of layer norm": _layer("LayerNorm", (X,), X, {"axis": 3, "epsilon": 1e-5, "rms": 1}, {}),
    "group norm": _layer("GroupNorm", (X, CHANNELS), X, {"groups": 1, "epsilon": 1e-5}, {1: PER_CHANNEL[1]}),
    "softmax": _layer("Softmax", (X,), X, {"axis": 1}, {}),
    "nearest": _layer("Resize", (X,), TensorType((2, 11, 12, 10)), {**RESIZE, "mode": "nearest"}, {}),
    "linear": _layer("Resize", (X,), TensorType((2, 11, 12, 10)), {**RESIZE, "mode": "linear"}, {}),
    "filter": _layer(
        "Resize", (X,), TensorType((2, 11, 12, 2)), {**RESIZE, "mode": "linear_antialias", "scales": (2.0, 0.4)}, {}
    ),
    "reshape": _layer("Reshape", (X,), TensorType((2, 330)), {}, {}),
    "transpose": _layer("Transpose", (X,), TensorType((2, 5, 11, 6)), {"perm": (0, 3, 1, 2)}, {}),
    "last": _layer("Transpose", (X,), TensorType((2, 6, 5, 11)), {"perm": (0, 2, 3, 1)}, {}),
    "slice": _layer("Slice", (X,), TensorType((2, 3, 3, 5)), {"starts": (0, 8, 1, 0), "steps": (1, 1, 2, 1)}, {}),
    "reorder": reorder_layer(X, Layout(8), Layout(4)),
    "copy": reorder_layer(X, Layout(0), Layout(0)),
}


def _settings(layer: Layer) -> list[tuple[Lowering, tuple[Layout, ...], tuple[Layout, ...]]]:
    """All lowerings of the layer with their layouts."""
    routines = [r for r in (*memory_bound_routines(BLOCK), REORDER_ROUTINE) if r.supports(layer)]
    return [(r.lower(layer, p), *r.layouts(layer, p)) for r in routines for p in r.parameter_space(layer)]


def _run(layer: Layer, lowering: Lowering, inputs: tuple[Layout, ...], outputs: tuple[Layout, ...]) -> None:
    feeds = [np.zeros(layer.type_of(i).shape, np.float32) for i in layer.activations]
    run_lowering(lowering, layer, feeds, inputs, outputs, (OWN_CORE, OWN_CORE))


def _with_parameter(lowering: Lowering, index: int, value: int) -> Lowering:
    call = lowering.calls[0]
    words = [*call.parameters]
    words[index] = value
    return replace(lowering, calls=(replace(call, parameters=tuple(words)), *lowering.calls[1:]))


HOSTILE = st.sampled_from(
    [-(2**63), -(2**31), -16, -1, 0, 1, 2, 3, 4, 5, 7, 8, 9, 16, 17, 64, 2**24, 2**24 + 1, 2**31, 2**32 + 1, 2**62]
)


@given(st.sampled_from(sorted(LAYERS)), st.data())
@settings(max_examples=800)
def test_a_changed_parameter_is_refused_or_stays_inside(name: str, data: st.DataObject) -> None:
    """Accepted steps run between guard bytes, which `run_lowering` checks."""
    layer = LAYERS[name]
    lowering, inputs, outputs = data.draw(st.sampled_from(_settings(layer)))
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(lowering.calls[0].parameters) - 1))
        lowering = _with_parameter(lowering, index, data.draw(HOSTILE))
    with suppress(PackageError):
        _run(layer, lowering, inputs, outputs)


def _bounded(lowering: Lowering) -> list[int]:
    """Indices of the parameters that must be within bounds: all but an activation's floats, and a period of no use."""
    call = lowering.calls[0]
    indices = [*range(len(call.parameters))]
    if not call.kernel.startswith(("concat/", "reorder/", "strided/")):
        indices = indices[:-2]
    if call.kernel == "eltwise/binary" and not call.parameters[3]:
        indices.remove(4)
    return indices


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_sizes_beyond_the_buffers_are_refused(name: str) -> None:
    """Every parameter is huge or negative, and the product of every two overflows to 0."""
    layer = LAYERS[name]
    for lowering, inputs, outputs in _settings(layer):
        _run(layer, lowering, inputs, outputs)
        for index in _bounded(lowering):
            for value in (2**62, -1, -(2**63)):
                with pytest.raises(PackageError):
                    _run(layer, _with_parameter(lowering, index, value), inputs, outputs)
            for other in _bounded(lowering):
                changed = _with_parameter(_with_parameter(lowering, index, 2**32), other, 2**32)
                with pytest.raises(PackageError):
                    _run(layer, changed, inputs, outputs)


@pytest.mark.parametrize("name", ["scale", "affine", "prelu"])
def test_rows_that_lanes_do_not_divide_are_refused(name: str) -> None:
    """Of as many floats in all: a row of 15 and of 16 floats, where a pixel has several lanes."""
    layer = LAYERS[name]
    refused = 0
    for lowering, inputs, outputs in _settings(layer):
        parameters = lowering.calls[0].parameters
        place = 1 if lowering.calls[0].kernel == "eltwise/binary" else 0
        row, lanes = parameters[place + 1 : place + 3]
        if lanes > 1:
            refused += 1
            changed = _with_parameter(_with_parameter(lowering, place, 1), place + 1, row - 1)
            with pytest.raises(PackageError, match="lanes"):
                _run(layer, changed, inputs, outputs)
    assert refused


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_missing_operands_and_parameters_are_refused(name: str) -> None:
    layer = LAYERS[name]
    for lowering, inputs, outputs in _settings(layer):
        call = lowering.calls[0]
        for changed in (
            replace(call, parameters=call.parameters[:-1]),
            replace(call, parameters=(*call.parameters, 0)),
            replace(call, reads=call.reads[:-1]),
            replace(call, reads=(None, *call.reads[1:])),
            replace(call, writes=()),
        ):
            with pytest.raises(PackageError):
                _run(layer, replace(lowering, calls=(changed, *lowering.calls[1:])), inputs, outputs)


def test_tables_that_point_outside_the_plane_are_clamped() -> None:
    for name in ("nearest", "linear"):
        layer = LAYERS[name]
        for lowering, inputs, outputs in _settings(layer):
            hostile = tuple(
                np.where(np.arange(table.size).reshape(table.shape) % 2, 2**31 - 1, -(2**31)).astype(np.int32)
                if table.dtype == np.int32
                else table
                for table in lowering.constants
            )
            feed = np.arange(X.elements, dtype=np.float32).reshape(X.shape)
            (found,) = run_lowering(
                replace(lowering, constants=hostile), layer, [feed], inputs, outputs, (OWN_CORE, OWN_CORE)
            )
            corners = feed[:, :, [0, 0, -1, -1], [0, -1, 0, -1]]
            assert found.min() >= corners.min()
            assert found.max() <= corners.max()
