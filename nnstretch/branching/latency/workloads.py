"""The fused layers of a scaled copy, worked out from shapes alone: what exporting and optimising it would give.

A search asks for the latency of hundreds of branches. Building, exporting and optimising each of them would take longer
than measuring their layers, of which there are few different ones.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
from torch import fx, nn

from nnstretch.branching.channels.groups import ChannelPlan
from nnstretch.branching.channels.scaling import UNSCALED, SkipInputs, TensorChannels, inputs_of, node_widths
from nnstretch.branching.design.cost import layer_sizes
from nnstretch.branching.design.design import Merge
from nnstretch.branching.latency.lowering import Lowered, lower, padding_of
from nnstretch.branching.tracing.operators import (
    Role,
    concat_operands,
    module_of,
    role_of,
    shape_of,
    tensor_operands,
    title_of,
)
from nnstretch.branching.transform.inherit import entry_name, needed_entries
from nnstretch.graph.activation import NO_ACTIVATION, Activation
from nnstretch.graph.layer import Attribute, Layer, TensorType, fused_pair

# As in the passes of `nnstretch.graph`: these can end with an activation.
_CARRIERS = frozenset({"Conv", "Dense", "Affine", "Add", "Sub", "Mul"})
_SHARED_NOISE = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32)


@dataclass(eq=False)
class _Op:
    """A layer while others are still fused into it.

    Attributes:
        name, op, attributes, activation: as in `Layer`.
        reads: what it reads at run time.
        shape: of what it writes.
        weight: shape of its weight, if it has one.
        bias: whether it has a bias.
        residual: what is added before its activation; `has_residual` says whether there is one.
        uses: how many read what it writes; the reader of the plan's output counts.
        place: where it runs.
        into: the layer that it was fused into, which writes what it wrote.
    """

    name: str
    op: str
    reads: list[_Op]
    shape: tuple[int, ...]
    attributes: dict[str, Attribute] = field(default_factory=dict)
    weight: tuple[int, ...] | None = None
    bias: bool = False
    residual: _Op | None = None
    activation: Activation = NO_ACTIVATION
    uses: int = 0
    place: int = 0
    into: _Op | None = None

    @property
    def now(self) -> _Op:
        """The layer that writes what this one wrote."""
        return self if self.into is None else self.into.now


@dataclass(frozen=True)
class LayerRow:
    """Layers in the order in which they run.

    Attributes:
        layers: themselves.
        pairs: numbers of those whose result the next one reads, as its input 0, and nobody else: one routine may compute both.
    """

    layers: tuple[Layer, ...]
    pairs: frozenset[int] = frozenset()

    @cached_property
    def joined(self) -> Mapping[int, Layer]:
        """By the number of the first of a pair the layer that computes both."""
        return {n: fused_pair(self.layers[n], self.layers[n + 1]) for n in sorted(self.pairs)}

    def only(self, numbers: Sequence[int]) -> LayerRow:
        """Those of some numbers, ascending."""
        place = {number: i for i, number in enumerate(numbers)}
        pairs = {place[n] for n in self.pairs if n in place and n + 1 in place}
        return LayerRow(tuple(self.layers[n] for n in numbers), frozenset(pairs))


def part_layers(
    plan: ChannelPlan, counts: Sequence[int], in_channels: int, *, exact: bool, skips: SkipInputs = UNSCALED
) -> LayerRow:
    """The layers of a copy of `plan` that keeps `counts[i]` channel groups of group `i`.

    Weights are noise. Batch norms and activations are fused, and so are sums, as `nnstretch.passes` fuse them.

    Args:
        plan: blocks and groups.
        counts: channel groups kept of every group.
        in_channels: channels of the tensor that the copy reads.
        exact: those are the original channels, each once and in order.
        skips: how the other tensors are read.
    """
    reads = inputs_of(plan, in_channels, skips, exact=exact)
    walk = _Walk(plan, counts, reads)
    ops = walk.run()
    readers = Counter(id(value.now) for op in ops for value in (*op.reads, op.residual) if value is not None)
    readers.update(id(value.now) for value in walk.results)
    pairs = (n for n, (a, b) in enumerate(pairwise(ops)) if b.reads[0].now is a and readers[id(a)] == 1)
    return LayerRow(tuple(map(_layer, ops)), frozenset(pairs))


def concat_layer(shapes: Sequence[tuple[int, ...]], name: str = "concat") -> Layer:
    """The layer at a meeting point of branches that write tensors of these `shapes`."""
    joined = (shapes[0][0], sum(shape[1] for shape in shapes), *shapes[0][2:])
    return Layer(
        name,
        "Concat",
        tuple(TensorType(shape) for shape in shapes),
        (TensorType(joined),),
        MappingProxyType({"axis": 1}),
    )


def merge_layers(merge: Merge, shapes: Sequence[tuple[int, ...]]) -> list[Layer]:
    """The layers at a meeting point: one concat, or a sum for every branch but one."""
    if merge is not Merge.ADD:
        return [concat_layer(shapes)]
    tensor = TensorType(shapes[0])
    return [Layer(f"add{number}", "Add", (tensor, tensor), (tensor,)) for number in range(1, len(shapes))]


class _Walk:
    """One pass over the nodes of a plan that makes layers, and fuses them on the way."""

    def __init__(self, plan: ChannelPlan, counts: Sequence[int], reads: Mapping[fx.Node, TensorChannels]) -> None:
        self.plan = plan
        self.widths = node_widths(plan, counts, reads[plan.source].channels, reads)
        exact = {tensor: read.exact for tensor, read in reads.items()}
        self.entries = needed_entries(plan, complete=plan.keeps_all(counts), exact=exact)
        self.ops: list[_Op] = []
        self.values = {tensor: _input(tensor, read.channels) for tensor, read in reads.items()}

    def run(self) -> list[_Op]:
        for tensor in self.entries:
            source, width = self.values[tensor], self.widths[tensor]
            entry = _Op(entry_name(self.plan, tensor), "Conv", [source], (source.shape[0], width, *source.shape[2:]))
            entry.weight = (width, source.shape[1], 1, 1)
            entry.attributes = {"strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "groups": 1}
            self.values[tensor] = self._add(entry)
        for node in self.plan.nodes:
            self._visit(node)
        self._count_uses()
        self._fold_norms()
        self._fuse()
        return sorted((op for op in self.ops if op.into is None), key=lambda op: op.place)

    @property
    def results(self) -> list[_Op]:
        """Who writes what is read outside."""
        return [self.values[self.plan.read(result)] for result in self.plan.results]

    def _add(self, op: _Op) -> _Op:
        op.place = len(self.ops)
        self.ops.append(op)
        return op

    def _shape(self, node: fx.Node) -> tuple[int, ...]:
        shape = shape_of(node)
        assert shape is not None
        if node not in self.widths:
            return shape
        return (shape[0], shape[1] // self.plan.full_widths[node] * self.widths[node], *shape[2:])

    def _value(self, node: fx.Node) -> _Op:
        return self.values[self.plan.read(node)]

    def _visit(self, node: fx.Node) -> None:
        role = role_of(node)
        if role in (Role.CONSTANT, Role.SHAPE) or shape_of(node) is None:
            return
        if role in (Role.CONV, Role.GROUPED, Role.DEPTHWISE, Role.LINEAR):
            self.values[node] = self._add(self._weighted(node))
        elif role is Role.CONCAT:
            parts = [self._value(part) for part in concat_operands(node)]
            self.values[node] = self._add(_Op(node.name, "Concat", parts, self._shape(node), attributes={"axis": 1}))
        elif role is Role.BINARY and len(tensor_operands(node)) == 2:
            self._binary(node)
        elif role is Role.OPAQUE:
            known = [n for n in node.all_input_nodes if self.plan.read(n) in self.values]
            op = _Op(node.name, f"onnx:{title_of(node)}", [self._value(n) for n in known], self._shape(node))
            self.values[node] = self._add(op)
        else:
            value = self._value(node.all_input_nodes[0])
            for lowered in lower(node, value.shape, self._shape(node)):
                value = self._add(_single(node.name, lowered, value))
            self.values[node] = value

    def _binary(self, node: fx.Node) -> None:
        shape = self._shape(node)
        operands = [self._value(tensor) for tensor in tensor_operands(node)]
        title = title_of(node).removeprefix("true").capitalize()
        # The operand that is broadcast stands second.
        if operands[0].shape != shape:
            operands.reverse()
        self.values[node] = self._add(_Op(node.name, title, operands, shape))

    def _weighted(self, node: fx.Node) -> _Op:
        module = module_of(node)
        reads, writes, groups = layer_sizes(self.plan, node, self.widths)
        value = self._value(node.all_input_nodes[0])
        op = _Op(node.name, "Dense", [value], self._shape(node), weight=(writes, reads))
        if isinstance(module, nn.Conv2d):
            op.op = "Conv"
            op.weight = (writes, reads // groups, *module.kernel_size)
            op.attributes = {
                "strides": tuple(module.stride),
                "pads": padding_of(module),
                "dilations": tuple(module.dilation),
                "groups": groups,
            }
        op.bias = getattr(module, "bias", None) is not None
        return op

    def _count_uses(self) -> None:
        for op in self.ops:
            for value in op.reads:
                value.uses += 1
        for result in self.results:
            result.uses += 1

    def _fold_norms(self) -> None:
        """Affine layers go into the layer that feeds them alone."""
        for op in self.ops:
            if op.op == "Affine":
                producer = op.reads[0].now
                if producer.op in ("Conv", "Dense", "Affine") and producer.uses == 1:
                    producer.bias = True
                    _replace(op, producer)

    def _fuse(self) -> None:
        for op in self.ops:
            if op.op == "Activation" and op.reads[0].now.uses == 1:
                producer = op.reads[0].now
                if producer.op in _CARRIERS and producer.activation == NO_ACTIVATION:
                    producer.activation = op.activation
                    _replace(op, producer)
            elif op.op == "Add" and op.reads[0].shape == op.reads[1].shape:
                _fuse_sum(op)


def _replace(old: _Op, new: _Op) -> None:
    """`new` writes from now on what `old` wrote, which goes."""
    new.uses = old.uses
    old.into = new


def _fuse_sum(op: _Op) -> None:
    """The sum goes into the later of its addends that is a Conv or Dense and feeds nothing else."""
    addends = [value.now for value in op.reads]
    ready = [
        value
        for value in addends
        if value.op in ("Conv", "Dense")
        and value.uses == 1
        and value.residual is None
        and value.activation == NO_ACTIVATION
    ]
    if not ready:
        return
    layer = max(ready, key=lambda value: value.place)
    layer.residual = addends[1] if addends[0] is layer else addends[0]
    layer.place = op.place  # after everything that it reads
    _replace(op, layer)


def _input(tensor: fx.Node, channels: int) -> _Op:
    """What is read from outside, with so many channels."""
    shape = shape_of(tensor)
    assert shape is not None
    return _Op("input", "input", [], (shape[0], channels, *shape[2:]))


def _single(name: str, lowered: Lowered, value: _Op) -> _Op:
    return _Op(name, lowered.op, [value], lowered.shape, dict(lowered.attributes), activation=lowered.activation)


def _layer(op: _Op) -> Layer:
    inputs: list[TensorType | None] = [TensorType(value.now.shape) for value in op.reads]
    constants: dict[int, np.ndarray] = {}
    if op.op == "Affine":
        for index in (1, 2):
            inputs.append(TensorType((op.shape[1],)))
            constants[index] = noise((op.shape[1],))
    if op.weight is not None:
        inputs.append(TensorType(op.weight))
        constants[1] = noise(op.weight)
        if op.bias:
            inputs.append(TensorType(op.weight[:1]))
            constants[2] = noise(op.weight[:1])
        elif op.residual is not None:
            inputs.append(None)
    if op.residual is not None:
        inputs.append(TensorType(op.residual.now.shape))
    return Layer(
        op.name,
        op.op,
        tuple(inputs),
        (TensorType(op.shape),),
        MappingProxyType(op.attributes),
        op.activation,
        MappingProxyType(constants),
    )


@cache
def noise(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Normal noise of any shape that takes no memory of its own: a read-only view whose elements overlap."""
    odd = (1, 3, 5, 7)
    length = sum((size - 1) * step for size, step in zip(shape, odd, strict=False)) + 1
    base = _SHARED_NOISE if length <= len(_SHARED_NOISE) else np.resize(_SHARED_NOISE, length)
    strides = tuple(step * base.itemsize for step in odd[: len(shape)])
    view = np.lib.stride_tricks.as_strided(base, shape, strides, writeable=False)
    assert math.prod(view.shape) == math.prod(shape)
    return view
