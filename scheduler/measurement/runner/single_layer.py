"""Plans of a single layer, to measure and check a routine in the engine that runs whole networks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from nnstretch.devices.base.constants import Constant, Prepared, write_constants
from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import PLAIN, Layout, Lowering, Operand, Parameters, Routine, reorder_layer
from nnstretch.devices.cpu.queues import HOST
from nnstretch.devices.engine.binding.program import aligned_array
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.plan.schema import (
    CALLER_QUEUE,
    Memory,
    Plan,
    PlanBuffer,
    PlanStep,
    PlanSubgraph,
    PlanTensor,
    aligned,
    plan_queue,
)
from nnstretch.scheduler.plan.validate import validate

_WORD = 4  # bytes
_SMALL = 1 << 16
"""Bytes of the largest array that is its own recipe."""


@dataclass(frozen=True)
class SingleLayer:
    """A layer, computed by one routine on one processor.

    Attributes:
        processor: the processor.
        routine: the routine.
        layer: the layer.
        parameters: the routine's parameters.
        lowering: what the routine lowers the layer to.
        repeats: how often a run computes the layer, so that the cost of starting a run is small. Each repeat has a copy of the
            weights: a network uses the weights of other layers between two runs of one.
        turns: on a device, number of buffers that the repeats use in rotation for every input and output. In a network, large
            tensors leave the core's own cache between their writing and reading.
        host: the CPU that drives a device. It starts the device after a whole run is enqueued, since most of a network is
            enqueued when a layer begins. None if the layer runs on the CPU.
        shown: the host copies a device's outputs out.
    """

    processor: Processor
    routine: Routine
    layer: Layer
    parameters: Parameters
    lowering: Lowering
    repeats: int = 1
    turns: int = 1
    host: Processor | None = None
    shown: bool = False


def random_inputs(layer: Layer, seed: int = 0) -> list[np.ndarray]:
    """Random row-major arrays for a layer's run-time inputs: normally distributed floats, uniformly distributed integers."""
    rng = np.random.default_rng(seed)
    return [_random(rng, layer.type_of(i)) for i in layer.activations]


def _random(rng: np.random.Generator, tensor: TensorType) -> np.ndarray:
    storage = tensor.element.storage
    if storage.kind in "iu":
        limits = np.iinfo(storage)
        return rng.integers(limits.min, limits.max, tensor.shape, storage, endpoint=True)
    return rng.standard_normal(tensor.shape).astype(storage)


@dataclass(frozen=True, eq=False)
class SinglePlan:
    """A plan of one layer, and its data.

    Attributes:
        plan: validated. On the host its inputs are the layer's, as stored; on a device the inputs are constants.
        inputs: values of the plan's inputs.
        parts: (offset, array) of the constants: a device's inputs, and the first copy of the weights.
        weights: (begin, bytes) of that copy; the others follow without gaps.
        repeats: number of copies.
        models: name -> model of an external engine; every step loads its own.
        results: types of the layer's outputs as stored.
    """

    plan: Plan
    inputs: tuple[np.ndarray, ...]
    parts: tuple[tuple[int, Constant], ...]
    weights: tuple[int, int]
    repeats: int
    models: Mapping[str, bytes] = field(default_factory=dict)
    results: tuple[TensorType, ...] = ()

    @property
    def base_bytes(self) -> int:
        """Bytes of the constants with one copy of the weights."""
        return sum(self.weights)

    @property
    def bytes(self) -> int:
        """Bytes of all constants and loaded models."""
        return self.weights[0] + self.repeats * (self.weights[1] + sum(map(len, self.models.values())))

    def recipe(self) -> Hashable:
        """How the constants with one copy of the weights are made; None if unknown. Equal recipes mean equal bytes."""
        recipes = [(offset, _recipe(constant)) for offset, constant in self.parts]
        if any(recipe is None for _, recipe in recipes):
            return None
        return (self.weights, *recipes)

    def write_base(self, memory: np.ndarray) -> None:
        """Writes the constants with one copy of the weights into `memory`, uint8[base_bytes] of zeros."""
        write_constants((array, memory[offset : offset + array.nbytes]) for offset, array in self.parts)


def _recipe(constant: Constant) -> Hashable:
    """How a constant is made: small ones are their own recipe."""
    if isinstance(constant, Prepared):
        return constant.recipe
    return constant.tobytes() if constant.nbytes <= _SMALL else None


def copied_weights(base: np.ndarray, weights: tuple[int, int], repeats: int) -> np.ndarray:
    """All constants of a `SinglePlan`, in huge pages like a network's: its base, and a copy of the weights per repeat."""
    begin, size = weights
    constants = aligned_array(begin + repeats * size)
    constants[:begin] = base[:begin]
    constants[begin:].reshape(repeats, size)[:] = base[begin : begin + size]
    return constants


def packed_inputs(layer: Layer, inputs: Sequence[np.ndarray], layouts: Sequence[Layout]) -> tuple[np.ndarray, ...]:
    """A layer's row-major run-time inputs as stored in `layouts`."""
    types = (layer.type_of(index) for index in layer.activations)
    return tuple(layout.pack(array, tensor=t) for array, layout, t in zip(inputs, layouts, types, strict=True))


def single_layer_plan(single: SingleLayer, inputs: Sequence[np.ndarray]) -> SinglePlan:
    """A plan that runs one layer on inputs in the routine's layouts.

    Its outputs are the layer's as stored: arrays of `Layout.storage_shape`, or bytes (`Layout.unpack` reads both). On a device
    the plan has outputs only with `SingleLayer.shown`.
    """
    return _Maker(single).make(inputs)


def output_name(index: int) -> str:
    """Name of the buffers in a device's memory that hold an output of the layer."""
    return f"y{index}"


class _Maker:
    def __init__(self, single: SingleLayer) -> None:
        self._single = single
        self._on_device = single.processor.backend.own_memory
        self._domain = 1 if self._on_device else 0
        _, layouts = single.routine.layouts(single.layer, single.parameters)
        self._stored = [_stored_output(t, layout) for t, layout in zip(single.layer.outputs, layouts, strict=True)]
        self._buffers: list[PlanBuffer] = []
        self._parts: list[tuple[int, Constant]] = []
        self._models: dict[str, bytes] = {}
        self._constant_bytes = 0
        self._arena_bytes = 0
        self._shared_bytes: list[int] = []

    def make(self, inputs: Sequence[np.ndarray]) -> SinglePlan:
        single, lowering = self._single, self._single.lowering
        workspaces = {i: self._scratch(f"s{i}", n) for i, n in enumerate(lowering.workspaces)}
        shown = not self._on_device or single.shown
        turns: list[dict[str, dict[int, int]]] = []
        for turn in range(single.turns if self._on_device else 1):
            read = {index: self._input(i, inputs[i]) for i, index in enumerate(single.layer.activations)}
            written = {
                i: self._output(i, t) if shown and not turn else self._scratch(output_name(i), PLAIN.bytes(t))
                for i, t in enumerate(self._stored)
            }
            turns.append({"input": read, "workspace": workspaces, "output": written})
        begin = self._constant_bytes
        steps: tuple[PlanStep, ...] = ()
        for repeat in range(self._single.repeats):
            copies = {i: self._constant(f"w{repeat}.{i}", a, repeat) for i, a in enumerate(lowering.constants)}
            steps += self._steps(lowering, {**turns[repeat % len(turns)], "constant": copies})
        weights = (begin, (self._constant_bytes - begin) // self._single.repeats)
        slots = tuple(range(len(self._shared_bytes)))
        before, after = self._around(turns[0]["output"])
        fed = () if self._on_device else tuple(inputs)
        queue = plan_queue(single.processor)
        plan = Plan(
            block=(single.host or single.processor).blocked.block,
            queues=(CALLER_QUEUE, queue) if self._on_device else (replace(queue, kind=HOST.name),),
            inputs=tuple(PlanTensor(f"x{i}", TensorType(x.shape, str(x.dtype))) for i, x in enumerate(fed)),
            outputs=tuple(PlanTensor(f"y{i}", t) for i, t in enumerate(self._stored)) if shown else (),
            buffers=tuple(self._buffers),
            steps=(*before, *steps, *after),
            subgraphs=_in_turn([(0, before), (self._domain, steps), (0, after)], slots),
            host_bytes=_WORD if self._on_device else self._arena_bytes,
            shared_bytes=tuple(self._shared_bytes),
            shared_queues=(1,) * len(self._shared_bytes),
            device_bytes={1: self._arena_bytes} if self._on_device else {},
            constant_ranges={0: (0, _WORD), self._domain: (0, self._constant_bytes)},
        )
        validate(plan)
        stored = tuple(self._stored)
        return SinglePlan(plan, fed, tuple(self._parts), weights, single.repeats, self._models, stored)

    def _add(self, buffer: PlanBuffer) -> int:
        self._buffers.append(buffer)
        return len(self._buffers) - 1

    def _input(self, position: int, array: np.ndarray) -> int:
        if self._on_device:
            return self._constant(f"x{position}", array)
        return self._add(PlanBuffer(f"x{position}", "input", position, 0, array.nbytes))

    def _constant(self, name: str, array: Constant, repeat: int = 0) -> int:
        buffer = PlanBuffer(name, "constant", self._domain, self._constant_bytes, array.nbytes)
        if not repeat:
            self._parts.append((self._constant_bytes, array))
        self._constant_bytes = aligned(self._constant_bytes + array.nbytes)
        return self._add(buffer)

    def _scratch(self, name: str, size: int) -> int:
        memory: Memory = "device" if self._on_device else "host"
        buffer = PlanBuffer(name, memory, self._domain, self._arena_bytes, size)
        self._arena_bytes = aligned(self._arena_bytes + size)
        return self._add(buffer)

    def _output(self, index: int, stored: TensorType) -> int:
        size = PLAIN.bytes(stored)
        if not self._on_device:
            return self._add(PlanBuffer(f"y{index}", "output", index, 0, size))
        self._shared_bytes.append(aligned(size))
        return self._add(PlanBuffer(f"y{index}", "shared", len(self._shared_bytes) - 1, 0, size))

    def _steps(self, lowering: Lowering, tables: Mapping[str, Mapping[int, int]]) -> tuple[PlanStep, ...]:
        def number(operand: Operand) -> int:
            return tables[operand.kind][operand.index]

        layer = self._single.layer
        steps: list[PlanStep] = []
        for call in lowering.calls:
            if call.model is not None:
                self._models[call.kernel] = call.model
            steps.append(
                PlanStep(
                    layer=layer.name,
                    op=layer.op,
                    routine=str(self._single.routine.descriptor),
                    kind=call.kind,
                    kernel=call.kernel,
                    reads=tuple(None if o is None else number(o) for o in call.reads),
                    writes=tuple(number(o) for o in call.writes),
                    arguments=call.parameters,
                    launch=call.launch,
                    read_types=self._types(call.reads) if call.model is not None else (),
                    write_types=self._types(call.writes) if call.model is not None else (),
                )
            )
        return tuple(steps)

    def _types(self, operands: Sequence[Operand | None]) -> tuple[TensorType, ...]:
        """Types of the inputs and outputs of the layer that a model reads or writes."""
        layer = self._single.layer
        found = [o for o in operands if o is not None]
        return tuple(layer.type_of(o.index) if o.kind == "input" else layer.outputs[o.index] for o in found)

    def _around(self, results: Mapping[int, int]) -> tuple[tuple[PlanStep, ...], tuple[PlanStep, ...]]:
        """Host steps before and after a device's steps; `results` are the device's outputs.

        The device waits for the first, a copy of one word of the constants. Those after it copy the outputs out.
        """
        if not self._on_device:
            return (), ()
        host = self._single.host
        assert host is not None, "devices work for a host"
        source = self._add(PlanBuffer("constants", "constant", 0, 0, _WORD))
        begin = _copy(host, TensorType((1,)), source, self._add(PlanBuffer("begun", "host", 0, 0, _WORD)))
        copies: list[PlanStep] = []
        for i, stored in enumerate(self._stored if self._single.shown else ()):
            target = self._add(PlanBuffer(f"copy{i}", "output", i, 0, PLAIN.bytes(stored)))
            copies.append(_copy(host, stored, results[i], target))
        return (begin,), tuple(copies)


def _in_turn(parts: Sequence[tuple[int, Sequence[PlanStep]]], slots: tuple[int, ...]) -> tuple[PlanSubgraph, ...]:
    """Sub-graphs in sequence, each of which waits for the previous one; the device's release the shared slots."""
    made: list[PlanSubgraph] = []
    first = 0
    for queue, steps in parts:
        if steps:
            waits = (len(made) - 1,) if made else ()
            made.append(PlanSubgraph(queue, first, len(steps), waits, releases=slots if queue else ()))
            first += len(steps)
    return tuple(made)


def _copy(host: Processor, tensor: TensorType, source: int, target: int) -> PlanStep:
    """A host step that copies one buffer to another."""
    layer, routine = reorder_layer(tensor, PLAIN, PLAIN), host.reorder
    (call,) = routine.lower(layer, routine.default_parameters(layer)).calls
    name = str(routine.descriptor)
    return PlanStep(layer.name, layer.op, name, call.kind, call.kernel, (source,), (target,), call.parameters)


def _stored_output(tensor: TensorType, layout: Layout) -> TensorType:
    """An output as stored; as bytes if the layout has a data type of its own, since the host only copies it."""
    if layout.dtype:
        return TensorType((layout.bytes(tensor),), "uint8")
    return TensorType(layout.storage_shape(tensor.shape), tensor.dtype)
