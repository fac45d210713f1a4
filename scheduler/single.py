"""Plans of a single layer: how a routine is measured and checked, through the same engine that runs whole networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.devices.engine.harness import pack
from nnstretch.devices.processor import Processor
from nnstretch.devices.routine import PLAIN, Layout, Lowering, Operand, Parameters, Routine, reorder_layer
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.compiled import Compiled
from nnstretch.scheduler.plan import (
    Memory,
    Plan,
    PlanBuffer,
    PlanLane,
    PlanStep,
    PlanSubgraph,
    PlanTensor,
    aligned,
)
from nnstretch.scheduler.validate import validate


@dataclass(frozen=True)
class SingleLayer:
    """A layer as one routine computes it on one processor.

    Attributes:
        lowering: what the routine makes of the layer.
        repeats: how often the layer runs in a row, so that what a run costs beside its steps weighs little. Each repeat has
            a copy of the constants: in a network, other layers' weights pass through the caches between two uses of one.
        host: the CPU that copies a device's results out, or None if nobody reads them.
    """

    processor: Processor
    routine: Routine
    layer: Layer
    parameters: Parameters
    lowering: Lowering
    repeats: int = 1
    host: Processor | None = None


def random_inputs(layer: Layer, seed: int = 0) -> list[np.ndarray]:
    """Normal random arrays for the run-time inputs of `layer`, row-major."""
    rng = np.random.default_rng(seed)
    types = [layer.type_of(i) for i in layer.activations]
    return [rng.standard_normal(t.shape).astype(t.dtype) for t in types]


def single_layer_plan(single: SingleLayer, inputs: Sequence[np.ndarray]) -> Compiled:
    """A plan that runs one layer on `inputs`, which lie in its constants, already in the routine's layouts.

    Its outputs are the layer's outputs as stored: arrays of `Layout.storage_shape`. A device without `host` has none.
    """
    layouts_in, layouts_out = single.routine.layouts(single.layer, single.parameters)
    packed = {
        index: pack(array, layout)
        for index, array, layout in zip(single.layer.activations, inputs, layouts_in, strict=True)
    }
    return _Maker(single, layouts_out).make(packed)


class _Maker:
    def __init__(self, single: SingleLayer, layouts_out: Sequence[Layout]) -> None:
        self._single = single
        self._opencl = single.processor.memory == "opencl"
        self._domain = 1 if self._opencl else 0
        self._stored = [
            TensorType(layout.storage_shape(t.shape), t.dtype)
            for t, layout in zip(single.layer.outputs, layouts_out, strict=True)
        ]
        self._buffers: list[PlanBuffer] = []
        self._constants: list[np.ndarray] = []
        self._models: dict[str, bytes] = {}
        self._constant_bytes = 0
        self._arena_bytes = 0
        self._shared_bytes: list[int] = []

    def make(self, packed: Mapping[int, np.ndarray]) -> Compiled:
        lowering = self._single.lowering
        tables: dict[str, dict[int, int]] = {
            "input": {index: self._constant(f"x{index}", array) for index, array in packed.items()},
            "workspace": {i: self._scratch(f"s{i}", n) for i, n in enumerate(lowering.workspaces)},
            "output": {i: self._output(i, t) for i, t in enumerate(self._stored)},
        }
        steps: tuple[PlanStep, ...] = ()
        for repeat in range(self._single.repeats):
            copies = {i: self._constant(f"w{repeat}.{i}", a) for i, a in enumerate(lowering.constants)}
            steps += self._steps(lowering, {**tables, "constant": copies}, repeat)
        slots = tuple(range(len(self._shared_bytes)))
        subgraphs = [PlanSubgraph(self._domain, 0, len(steps), releases=slots)]
        if self._opencl and self._single.host:
            results = self._copies(self._single.host, tables["output"])
            subgraphs.append(PlanSubgraph(0, len(steps), len(results), waits=(0,)))
            steps += results
        plan = Plan(
            block=self._single.processor.blocked.block,
            lanes=self._lanes(),
            inputs=(),
            outputs=self._outputs(),
            buffers=tuple(self._buffers),
            steps=steps,
            subgraphs=tuple(subgraphs),
            host_bytes=0 if self._opencl else self._arena_bytes,
            shared_bytes=tuple(self._shared_bytes),
            shared_lanes=(1,) * len(self._shared_bytes),
            opencl_bytes={1: self._arena_bytes} if self._opencl else {},
            constant_ranges={self._domain: (0, self._constant_bytes)},
        )
        validate(plan)
        return Compiled(plan, self._pack(), self._models)

    def _lanes(self) -> tuple[PlanLane, ...]:
        processor = self._single.processor
        if not self._opencl:
            return (PlanLane("host", processor.name, processor.spec.cores),)
        return PlanLane("host", "", ()), PlanLane("opencl", processor.name, processor.spec.cores)

    def _outputs(self) -> tuple[PlanTensor, ...]:
        if self._opencl and not self._single.host:
            return ()
        return tuple(PlanTensor(f"y{i}", t) for i, t in enumerate(self._stored))

    def _add(self, buffer: PlanBuffer) -> int:
        self._buffers.append(buffer)
        return len(self._buffers) - 1

    def _constant(self, name: str, array: np.ndarray) -> int:
        buffer = PlanBuffer(name, "constant", self._domain, self._constant_bytes, array.nbytes)
        self._constants.append(array)
        self._constant_bytes = aligned(self._constant_bytes + array.nbytes)
        return self._add(buffer)

    def _scratch(self, name: str, size: int) -> int:
        memory: Memory = "opencl" if self._opencl else "host"
        buffer = PlanBuffer(name, memory, self._domain, self._arena_bytes, size)
        self._arena_bytes = aligned(self._arena_bytes + size)
        return self._add(buffer)

    def _output(self, index: int, stored: TensorType) -> int:
        size = PLAIN.bytes(stored)
        if not self._opencl:
            return self._add(PlanBuffer(f"y{index}", "output", index, 0, size))
        self._shared_bytes.append(aligned(size))
        return self._add(PlanBuffer(f"y{index}", "shared", len(self._shared_bytes) - 1, 0, size))

    def _steps(self, lowering: Lowering, tables: Mapping[str, Mapping[int, int]], repeat: int) -> tuple[PlanStep, ...]:
        def number(operand: Operand) -> int:
            return tables[operand.kind][operand.index]

        layer = self._single.layer
        steps: list[PlanStep] = []
        for call in lowering.calls:
            name = call.kernel
            if call.model is not None:
                name = f"{call.kernel}#{repeat}"
                self._models[name] = call.model
            steps.append(
                PlanStep(
                    layer=layer.name,
                    op=layer.op,
                    routine=str(self._single.routine.descriptor),
                    kind="call" if call.model is not None else "opencl" if call.launch else "kernel",
                    kernel=name,
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
        """Types of the layer's inputs and outputs that a model reads or writes."""
        layer = self._single.layer
        found = [o for o in operands if o is not None]
        return tuple(layer.type_of(o.index) if o.kind == "input" else layer.outputs[o.index] for o in found)

    def _copies(self, host: Processor, results: Mapping[int, int]) -> tuple[PlanStep, ...]:
        """Steps on the host that copy what the device made into the caller's arrays."""
        steps: list[PlanStep] = []
        for index, stored in enumerate(self._stored):
            layer, routine = reorder_layer(stored, PLAIN, PLAIN), host.reorder()
            target = self._add(PlanBuffer(f"copy{index}", "output", index, 0, PLAIN.bytes(stored)))
            (call,) = routine.lower(layer, routine.parameter_space(layer)[0]).calls
            name = str(routine.descriptor)
            steps.append(
                PlanStep(
                    layer.name, layer.op, name, "kernel", call.kernel, (results[index],), (target,), call.parameters
                )
            )
        return tuple(steps)

    def _pack(self) -> np.ndarray:
        packed = np.zeros(self._constant_bytes, dtype=np.uint8)
        offset = 0
        for array in self._constants:
            packed[offset : offset + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            offset = aligned(offset + array.nbytes)
        return packed
