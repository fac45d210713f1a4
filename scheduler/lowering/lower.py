"""Lowering: units with their chosen routines become steps over values.

Adapt layers (SoftNeuro, section II; NeoCPU, section 3.2) are inserted here. A tensor is converted to another
layout at most once per layout, right after it is made: on the queue that made it, or where its crossing says
(`crossing`). Views avoid copies: a
reshape of plain data is its input, a slice of contiguous elements is part of its input, and a concat whose
parts are contiguous has its inputs written in place.

All queues in host memory reach the same bytes, and one queue with memory of its own may share them. Never two
of these: the host copies whatever another device reads.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from nnstretch.devices.base.routine import PLAIN, KernelCall, Layout, Lowering, Operand, Routine, reorder_layer
from nnstretch.devices.external.engine import fallback_descriptor
from nnstretch.graph.layer import RUN_TIME_PRODUCTS, Layer, TensorType
from nnstretch.scheduler.lowering.choices import Choice, Fused
from nnstretch.scheduler.lowering.crossing import Crossings
from nnstretch.scheduler.lowering.program import LoweredProgram, Step, Value
from nnstretch.scheduler.lowering.units import Unit, UnitGraph, fallback_model
from nnstretch.scheduler.lowering.views import becomes_view, joinable, view_offset
from nnstretch.scheduler.plan.schema import PlanQueue

Reorders = Mapping[int, Routine]
"""The layout-changing routine of every queue that has one. Queue 0 has one and serves queues without."""

Price = Callable[[TensorType, Layout, Layout, int], float | None]
"""Seconds of a layout change of a tensor on a queue; None if unknown."""


_Variant = tuple[str, Layout, int]
"""Tensor, layout, and the memory domain in which it is made or for which it is copied (0: host memory, else a queue)."""


@dataclass
class UnitLowering:
    """Lowers all units of a graph.

    Attributes:
        graph: the units in topological order.
        choices: one per unit.
        queues: the plan's queues.
        reorders: the layout-changing routine of each queue that has one.
        coherent: whether host and devices may write different parts of one tensor at the same time.
        price: of layout changes.
        crossings: of tensors that have several ways to their readers.
    """

    graph: UnitGraph
    choices: Sequence[Choice]
    queues: Sequence[PlanQueue]
    reorders: Reorders
    coherent: bool
    price: Price
    crossings: Crossings = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._lowered = LoweredProgram()
        self._values: dict[_Variant, Value] = {}
        self._read_as: dict[str, dict[tuple[Layout, int], None]] = defaultdict(dict)
        self._producer: dict[str, tuple[int, int]] = {}  # tensor -> unit, output
        self._counter = itertools.count()

    def lower(self) -> LoweredProgram:
        """The steps over values, in the order of the units."""
        self._collect_reads()
        for index, name in enumerate(self.graph.inputs):
            value = self._new(name, PLAIN, 0)
            value.external = ("input", index)
            self._values[name, PLAIN, 0] = value
        self._plan_views()
        for name in self.graph.inputs:
            self._adapt(name)
        for number in range(len(self.graph.units)):
            self._emit_unit(number)
        for index, name in enumerate(self.graph.outputs):
            self._emit_output(index, name)
        return self._lowered

    # -- readers -------------------------------------------------------------------------------------------------

    def _domain(self, queue: int) -> int:
        """Memory domain of a queue: 0 for host memory, else the queue itself."""
        return self.queues[queue].backend.domain(queue)

    def _collect_reads(self) -> None:
        for number, (unit, choice) in enumerate(zip(self.graph.units, self.choices, strict=True)):
            for name, layout in zip(unit.inputs, choice.inputs, strict=True):
                if not isinstance(layout, Fused):
                    self._read_as[name][layout, self._domain(choice.queue)] = None
            for output, name in enumerate(unit.outputs):
                self._producer[name] = (number, output)
        for name in self.graph.outputs:
            layout, domain = self._home(name)
            if domain == 0 or layout.dtype:
                self._read_as[name][PLAIN, 0] = None

    def _home(self, name: str) -> tuple[Layout, int]:
        """Layout and memory domain of a tensor as it is made."""
        if name not in self._producer:
            return PLAIN, 0
        number, output = self._producer[name]
        choice = self.choices[number]
        return choice.outputs[output], self._domain(choice.queue)

    def _variant(self, name: str, layout: Layout, domain: int) -> _Variant:
        """The variant of a tensor that a reader in `domain` takes: its own if it changes the layout itself."""
        if self._changed_by_reader(name, layout, domain):
            return name, layout, domain
        return self._given(name, layout, domain)

    def _changed_by_reader(self, name: str, layout: Layout, domain: int) -> bool:
        """Whether readers of a tensor make its layout themselves."""
        crossing = self.crossings.get((name, layout, domain))
        return crossing is not None and crossing.carried != layout

    def _given(self, name: str, layout: Layout, domain: int) -> _Variant:
        """The variant of a tensor that a reader in `domain` is given in a layout.

        The host reads what a device made. A device reads what the host made if the bytes may be shared with
        it. It takes a copy of the caller's arrays, and of tensors that another device makes or shares.
        """
        _, made = self._home(name)
        own, common = (name, layout, domain), (name, layout, made)
        if domain in (0, made):
            return common
        return own if made or not self._may_share(common, domain) else common

    def _may_share(self, variant: _Variant, device: int) -> bool:
        """Whether a device may read a variant that the host makes. A variant not made yet may be the caller's array."""
        if variant in self._values:
            return self._values[variant].admits(device)
        return variant[1] != PLAIN or variant[0] not in self.graph.outputs

    # -- views ---------------------------------------------------------------------------------------------------

    def _plan_views(self) -> None:
        """Makes the inputs of joinable concats parts of the concat's value, before they are written."""
        for unit, choice in zip(self.graph.units, self.choices, strict=True):
            layer = unit.layer
            if layer.op != "Concat" or choice.group or choice.is_head:
                continue
            offsets = joinable(layer, choice.outputs[0])
            if offsets is None:
                continue
            domain = self._domain(choice.queue)
            whole = self._new(unit.outputs[0], choice.outputs[0], domain)
            self._values[unit.outputs[0], choice.outputs[0], domain] = whole
            for name, offset in zip(unit.inputs, offsets, strict=True):
                self._plan_part(name, whole, offset, domain)

    def _plan_part(self, name: str, whole: Value, offset: int, domain: int) -> None:
        """Plans an input of a concat as part of `whole` if possible.

        Excluded are the caller's arrays, views, tensors that another device touches and, where host and
        device may not write one tensor at the same time, tensors that the other side makes.
        """
        home = (name, *self._home(name))
        variant = self._variant(name, whole.layout, domain)
        changes_itself = self._changed_by_reader(name, whole.layout, domain)
        writer = domain if changes_itself else home[2] if variant[2] == home[2] else 0
        if (writer != domain and not self.coherent) or (variant == home and self._may_be_view(name)):
            return
        part = self._values.get(variant) or self._new(*variant)
        if part.root is None and part.external is None and whole.admits(part.device):
            whole.claim(part.device)
            part.root, part.offset = whole, offset
            self._values[variant] = part

    def _may_be_view(self, name: str) -> bool:
        """Whether a tensor may be a view of the input of a layer such as a reshape, made by no step."""
        if name not in self._producer:
            return False
        layer, choice = self.graph.units[self._producer[name][0]].layer, self.choices[self._producer[name][0]]
        is_slice = layer.op == "Slice" and becomes_view(layer, choice.inputs, choice.outputs)
        return (is_slice or layer.op in ("Reshape", "Dequantize")) and not choice.group

    # -- emission ------------------------------------------------------------------------------------------------

    def _new(self, name: str, layout: Layout, domain: int) -> Value:
        """A new value with bytes of its own for a variant of a tensor."""
        tensor = self.graph.types[name]
        return Value(f"{name}#{next(self._counter)}", layout.bytes(tensor), layout, tensor, device=domain)

    def _emit_unit(self, number: int) -> None:
        unit, choice = self.graph.units[number], self.choices[number]
        if choice.is_head:
            return
        reads = self._reads(unit, choice)
        if choice.group:
            self._emit_lowering(choice.group.layer, choice, dict(enumerate(reads)), self._writes(unit, choice))
        elif choice.routine is None:
            self._emit_fallback(unit, choice, reads, self._writes(unit, choice))
        elif not self._emit_as_view(unit, unit.layer, choice, reads):
            by_input = dict(zip(unit.layer.activations, reads, strict=True))
            self._emit_lowering(unit.layer, choice, by_input, self._writes(unit, choice))
        for name in unit.outputs:
            self._adapt(name)

    def _reads(self, unit: Unit, choice: Choice) -> list[Value]:
        """The values that a unit reads; those of the fusion group for the last unit of one."""
        names, layouts = unit.inputs, choice.inputs
        if choice.group and choice.routine:
            names, layouts = choice.group.reads, choice.routine.layouts(choice.group.layer, choice.parameters)[0]
        domain = self._domain(choice.queue)
        return [self._values[self._variant(n, layout, domain)] for n, layout in zip(names, layouts, strict=True)]

    def _writes(self, unit: Unit, choice: Choice) -> list[Value]:
        domain = self._domain(choice.queue)
        return [self._output_value(n, made, domain) for n, made in zip(unit.outputs, choice.outputs, strict=True)]

    def _emit_fallback(self, unit: Unit, choice: Choice, reads: Sequence[Value], writes: Sequence[Value]) -> None:
        operators = "+".join(n.layer.op.removeprefix("onnx:") for n in unit.nodes)
        self._lowered.steps.append(
            Step(
                unit.name,
                operators,
                fallback_descriptor(unit.layer),
                choice.queue,
                KernelCall(unit.name, (), (), model=fallback_model(unit).SerializeToString()),
                tuple(reads),
                tuple(writes),
                choice.parameters,
                choice.seconds,
                sum(n.layer.macs - n.layer.product_macs for n in unit.nodes),
                is_fallback=True,
            )
        )

    def _emit_as_view(self, unit: Unit, layer: Layer, choice: Choice, reads: Sequence[Value]) -> bool:
        """Emits a concat, reshape or slice as a view; False if it needs a kernel."""
        name, layout, domain = unit.outputs[0], choice.outputs[0], self._domain(choice.queue)
        if layer.op == "Concat" and (offsets := joinable(layer, layout)) is not None:
            whole = self._values[name, layout, domain]
            for read, offset in zip(reads, offsets, strict=True):
                if read.root is not whole or read.offset != offset:
                    part = Value(whole.name, read.bytes, layout, read.type, root=whole, offset=offset)
                    self._emit_reorder(read, part, layout, layout, choice.queue)
            return True
        begin = view_offset(layer, choice.inputs[0], layout)
        if begin is not None and not reads[0].external:
            view = self._values[name, layout, domain] = self._new(name, layout, domain)
            view.root, view.offset = reads[0], begin
            return True
        return False

    def _output_value(self, name: str, layout: Layout, domain: int) -> Value:
        """The value that a unit writes: part of a concat if planned so, the caller's array for an output of the model."""
        if (name, layout, domain) not in self._values:
            value = self._values[name, layout, domain] = self._new(name, layout, domain)
            self._bind_output(name, value, domain)
        return self._values[name, layout, domain]

    def _bind_output(self, name: str, value: Value, domain: int) -> None:
        if name in self.graph.outputs and value.layout == PLAIN and domain == 0:
            value.external = ("output", self.graph.outputs.index(name))

    def _adapt(self, name: str) -> None:
        """Makes all other variants of a new tensor that are read, each once."""
        written = {(name, *self._home(name))}
        for wanted, reader in list(self._read_as[name]):
            crossing = self.crossings.get((name, wanted, reader))
            given = self._given(name, wanted if crossing is None else crossing.carried, reader)
            self._give(given, written)
            self._values[given].claim(reader)
            taken = (name, wanted, reader) if self._changed_by_reader(name, wanted, reader) else given
            if crossing is not None and taken not in written:
                written.add(taken)
                self._emit_change(given, taken, crossing.changes[-1].queue)
            self._values[taken].claim(reader)

    def _give(self, variant: _Variant, written: set[_Variant]) -> None:
        """Makes a variant that readers are given, unless it is among those `written`.

        The queue that made the tensor does so. Queue 0 copies between two devices; it copies floats and int8 as they are, so
        that the first device changes their type before.
        """
        if variant in written:
            return
        name, wanted, place = variant
        layout, made = self._home(name)
        source, queue = (name, layout, made), self._queue_of(name)
        if made and place != made:
            queue = 0
            if layout.dtype or wanted.dtype:
                source = (name, wanted, made)
                self._give(source, written)
        written.add(variant)
        self._emit_change(source, variant, queue)

    def _emit_change(self, source: _Variant, made: _Variant, queue: int) -> None:
        """Makes a variant of another one on a queue."""
        if made not in self._values:
            self._values[made] = self._new(*made)
            self._bind_output(made[0], self._values[made], made[2])
        self._emit_reorder(self._values[source], self._values[made], source[1], made[1], queue)

    def _queue_of(self, name: str) -> int:
        """The queue that makes a tensor; queue 0 for the caller's inputs."""
        return self.choices[self._producer[name][0]].queue if name in self._producer else 0

    def _emit_output(self, index: int, name: str) -> None:
        """Copies an output into the caller's array if it was not made there."""
        layout, domain = self._home(name)
        plain = [self._values.get((name, PLAIN, place)) for place in (0, domain)]
        value = next((v for v in plain if v is not None), self._values[name, layout, domain])
        if value.external == ("output", index):
            return
        target = self._new(name, PLAIN, 0)
        target.external = ("output", index)
        self._emit_reorder(value, target, value.layout, PLAIN, 0 if domain else self._queue_of(name))

    def _emit_reorder(self, source: Value, target: Value, before: Layout, after: Layout, queue: int) -> None:
        assert source.type is not None
        queue = queue if queue in self.reorders else 0
        layer = reorder_layer(source.type, before, after)
        routine = self.reorders[queue]
        parameters = routine.default_parameters(layer)
        choice = Choice(queue, routine, parameters, (before,), (after,), self.price(source.type, before, after, queue))
        self._emit_lowering(layer, choice, {0: source}, [target])

    def _emit_lowering(self, layer: Layer, choice: Choice, reads: Mapping[int, Value], writes: Sequence[Value]) -> None:
        assert choice.routine is not None
        lowering: Lowering = choice.routine.lower(layer, choice.parameters)
        domain = self._domain(choice.queue)
        first = len(self._lowered.constants[domain])
        self._lowered.constants[domain] += lowering.constants
        spaces = [
            Value(f"{layer.name}.workspace{i}#{next(self._counter)}", size, PLAIN, None)
            for i, size in enumerate(lowering.workspaces)
        ]

        def resolve(operand: Operand) -> Value | int:
            if operand.kind == "constant":
                return first + operand.index
            if operand.kind == "input":
                return reads[operand.index]
            return (writes if operand.kind == "output" else spaces)[operand.index]

        for position, call in enumerate(lowering.calls):
            targets = [resolve(o) for o in call.writes]
            self._lowered.steps.append(
                Step(
                    layer.name,
                    layer.op,
                    str(choice.routine.descriptor),
                    choice.queue,
                    call,
                    tuple(None if o is None else resolve(o) for o in call.reads),
                    tuple(t for t in targets if isinstance(t, Value)),
                    choice.parameters,
                    choice.seconds if position == 0 else (None if choice.seconds is None else 0.0),
                    _step_macs(layer) if position == 0 else 0,
                )
            )


def _step_macs(layer: Layer) -> int:
    """Multiply-accumulates of a step: those of convolutions and dense layers, unless it is nothing but a product."""
    return layer.macs if layer.op in RUN_TIME_PRODUCTS else layer.macs - layer.product_macs
