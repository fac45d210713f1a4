"""Convolution and dense kernels refuse steps that would leave their buffers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pytest

from nnstretch.devices.base.routine import KernelCall, Parameters, Routine
from nnstretch.devices.engine.binding.image import (
    Buffer,
    Queue,
    QueueKind,
    Region,
    RegionKind,
    Step,
    StepKind,
    SubGraph,
)
from nnstretch.devices.engine.binding.library import engine
from nnstretch.devices.engine.binding.program import Program, aligned_array
from nnstretch.devices.engine.build import engine_library
from nnstretch.devices.engine.build.instruction_sets import local_isa
from nnstretch.errors import PackageError
from nnstretch.graph.activation import Activation, ActivationKind
from nnstretch.graph.layer import Layer, TensorType, fused_pair
from tests.kits.kernels.cpu_routines import compute_bound_routines
from tests.kits.kernels.int8_layers import quantized

HERE = Path(__file__).parent
ENGINE = Path(engine_library.__file__).parents[1]
FLOAT = 4


def layer_of(channels: int, outputs: int, groups: int, kernel: int = 3, residual: bool = True) -> Layer:
    weight = np.ones((outputs, channels // groups, kernel, kernel), np.float32)
    pads = (kernel // 2,) * 4
    y = TensorType((2, outputs, 7, 9))
    x = TensorType((2, channels, 7, 9))
    return Layer(
        "tested",
        "Conv",
        (x, TensorType(weight.shape), TensorType((outputs,)), y if residual else None),
        (y,),
        MappingProxyType({"strides": (1, 1), "pads": pads, "dilations": (1, 1), "groups": groups}),
        Activation(ActivationKind.RELU),
        MappingProxyType({1: weight, 2: np.ones(outputs, np.float32)}),
    )


def dense_layer() -> Layer:
    weight = np.ones((70, 33), np.float32)
    shapes = ((3, 33), (70, 33), (70,), (3, 70))
    return Layer(
        "tested",
        "Dense",
        tuple(map(TensorType, shapes)),
        (TensorType((3, 70)),),
        MappingProxyType({}),
        Activation(ActivationKind.RELU),
        MappingProxyType({1: weight, 2: np.ones(70, np.float32)}),
    )


LAYERS = {
    "direct": layer_of(40, 64, 1),
    "grouped": layer_of(72, 72, 3),
    "planar": layer_of(3, 32, 1),
    "depthwise": layer_of(20, 20, 20),
    "dense": dense_layer(),
    "expand": fused_pair(layer_of(20, 48, 1, 1, residual=False), layer_of(48, 48, 48)),
    "project": fused_pair(layer_of(48, 48, 48, residual=False), layer_of(48, 20, 1, 1)),
}


def calls(name: str, layers: Mapping[str, Layer] = LAYERS) -> list[tuple[KernelCall, tuple[int, ...], int]]:
    """Every call of every lowering of the layer, with the bytes of its operands."""
    layer = layers[name]
    found = []
    for routine in compute_bound_routines(local_isa()):
        if routine.supports(layer):
            found += [_call(routine, layer, parameters) for parameters in routine.parameter_space(layer)]
    assert found
    return found


def _call(routine: Routine, layer: Layer, parameters: Parameters) -> tuple[KernelCall, tuple[int, ...], int]:
    lowering = routine.lower(layer, parameters)
    inputs, (output,) = routine.layouts(layer, parameters)
    bytes_in = {i: layout.bytes(layer.type_of(i)) for i, layout in zip(layer.activations, inputs, strict=True)}
    (call,) = lowering.calls
    sizes = []
    for operand in call.reads:
        assert operand is not None
        constant = operand.kind == "constant"
        sizes.append(lowering.constants[operand.index].nbytes if constant else bytes_in[operand.index])
    return call, tuple(sizes), output.bytes(layer.outputs[0])


def create(
    call: KernelCall, reads: Sequence[int], write: int, present: Sequence[bool] | None = None, writes: int = 1
) -> None:
    """Makes a program of the call on buffers of these sizes, without running it."""
    sizes = [*reads, write]
    memory = [aligned_array(max(size, FLOAT)) for size in sizes]
    step = Step(
        StepKind.KERNEL,
        engine().find(call.kernel),
        tuple(i if here else -1 for i, here in enumerate(present or (True,) * len(reads))),
        (len(reads),) * writes,
        call.parameters,
    )
    program = Program(
        queues=[Queue(QueueKind.HOST, (0,))],
        regions=[Region(RegionKind.FIXED, array.nbytes, memory=array) for array in memory],
        buffers=[Buffer(i, 0, size) for i, size in enumerate(sizes)],
        steps=[step],
        subgraphs=[SubGraph(0, 1)],
    )
    program.close()


@pytest.mark.parametrize("name", LAYERS)
def test_buffers_need_exactly_their_size(name: str) -> None:
    for call, reads, write in calls(name):
        create(call, reads, write)
        for i in range(len(reads)):
            smaller = [*reads]
            smaller[i] -= FLOAT
            with pytest.raises(PackageError, match="too small"):
                create(call, smaller, write)
        with pytest.raises(PackageError, match="too small"):
            create(call, reads, write - FLOAT)


INT8_LAYERS = {name: quantized(LAYERS[name], 1) for name in ("direct", "grouped", "planar", "depthwise", "dense")}
RESIDUAL = 4


@pytest.mark.parametrize("name", INT8_LAYERS)
def test_int8_kernels_need_exactly_their_sizes_and_all_but_a_residual(name: str) -> None:
    for call, reads, write in calls(name, INT8_LAYERS):
        create(call, reads, write)
        create(call, reads, write, [i != RESIDUAL for i in range(len(reads))])
        for i in range(len(reads)):
            with pytest.raises(PackageError, match="too small"):
                create(call, [size - (i == at) for at, size in enumerate(reads)], write)
            if i != RESIDUAL:
                with pytest.raises(PackageError):
                    create(call, reads, write, [i != at for at in range(len(reads))])
        with pytest.raises(PackageError, match="too small"):
            create(call, reads, write - 1)
        for index in range(len(call.parameters)):
            for value in (2**62, 2**33, -129, -(2**63)):
                with pytest.raises(PackageError):
                    create(_changed(call, {index: value}), reads, write)


@pytest.mark.parametrize("name", LAYERS)
def test_only_bias_and_residual_are_optional(name: str) -> None:
    for call, reads, write in calls(name):
        optional = (2, 4, 5) if len(reads) > 4 else (2, 3)
        create(call, reads, write, [i not in optional for i in range(len(reads))])
        for absent in set(range(len(reads))).difference(optional):
            present = [i != absent for i in range(len(reads))]
            with pytest.raises(PackageError):
                create(call, reads, write, present)


@pytest.mark.parametrize("name", LAYERS)
def test_missing_operands_and_parameters_are_refused(name: str) -> None:
    for call, reads, write in calls(name):
        for parameters in (call.parameters[:-1], (*call.parameters, 0), ()):
            with pytest.raises(PackageError):
                create(replace(call, parameters=parameters), reads, write)
        with pytest.raises(PackageError):
            create(call, reads[:-1], write)
        with pytest.raises(PackageError):
            create(call, reads, write, writes=2)


@pytest.mark.parametrize("name", LAYERS)
def test_sizes_beyond_the_buffers_are_refused(name: str) -> None:
    """Every parameter is huge or negative, and the product of every two overflows to 0."""
    for call, reads, write in calls(name):
        count = len(call.parameters)
        floats = {count - 1, count - 2} | ({count - 4, count - 5} if len(reads) > 4 else set())  # of activations
        bounded = set(range(count)) - floats
        for index in bounded:
            for value in (2**62, 2**31, -1, -(2**63)):
                with pytest.raises(PackageError):
                    create(_changed(call, {index: value}), reads, write)
            for other in bounded:
                with pytest.raises(PackageError):
                    create(_changed(call, {index: 2**32, other: 2**32}), reads, write)


def _changed(call: KernelCall, values: dict[int, int]) -> KernelCall:
    return replace(call, parameters=tuple(values.get(i, p) for i, p in enumerate(call.parameters)))
