"""The fused layers of a scaled copy, without exporting and optimising it.

A search needs the latency of hundreds of branches, which have few distinct layers. Building, exporting and optimising each
branch would take longer than measuring these. So the layers of a plan are fused once, and get the shapes of every copy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import MappingProxyType
from weakref import WeakKeyDictionary

import numpy as np
from torch import fx

from nnstretch.branching.channels.groups import ChannelPlan, network_input
from nnstretch.branching.channels.scaling import (
    ORIGINAL,
    NodeWidths,
    ReadChannels,
    TensorChannels,
    inputs_of,
    needed_entries,
    node_widths,
    output_channels,
)
from nnstretch.branching.design.cost import layer_sizes, part_cost
from nnstretch.branching.design.design import Merge
from nnstretch.branching.latency.fused_plan import FusedLayer, FusedLayers, PlanTensor, fuse_plan, noise
from nnstretch.branching.tracing.operators import channels_of
from nnstretch.graph.layer import Attribute, Layer, TensorType, fused_pair

_joined = lru_cache(maxsize=8192)(fused_pair)
"""The fusion group of two layers. Copies of equal sizes are one object, and pairs of them are asked for again and again."""

_fused: WeakKeyDictionary[ChannelPlan, dict[tuple[fx.Node, ...], FusedLayers]] = WeakKeyDictionary()


@dataclass(frozen=True)
class LayerRow:
    """Layers in the order in which they run.

    Attributes:
        layers: the layers.
        pairs: numbers of layers whose only consumer is the next layer's input 0: one routine may compute both.
        rereads: numbers of layers whose input 0 was read by a layer before.
    """

    layers: tuple[Layer, ...]
    pairs: frozenset[int] = frozenset()
    rereads: frozenset[int] = frozenset()

    @cached_property
    def joined(self) -> Mapping[int, Layer]:
        """Number of the first layer of a pair -> the fusion group of both."""
        return {n: _joined(self.layers[n], self.layers[n + 1]) for n in sorted(self.pairs)}

    def only(self, numbers: Sequence[int]) -> LayerRow:
        """The layers with these numbers, ascending."""
        place = {number: i for i, number in enumerate(numbers)}
        pairs = {place[n] for n in self.pairs if n in place and n + 1 in place}
        return LayerRow(tuple(self.layers[n] for n in numbers), frozenset(pairs))


def part_layers(
    plan: ChannelPlan, counts: Sequence[int], reads: ReadChannels = ORIGINAL, widths: NodeWidths | None = None
) -> LayerRow:
    """The layers of a copy of `plan` that keeps `counts[i]` channel groups of group `i`. Weights are noise.

    Args:
        plan: blocks and groups.
        counts: channel groups kept of every group.
        reads: channels of the tensors that the copy reads.
        widths: `node_widths` of these arguments, if they are known.
    """
    inputs = inputs_of(plan, reads)
    entries = tuple(needed_entries(plan, counts, inputs))
    by_entries = _fused.setdefault(plan, {})
    if entries not in by_entries:
        by_entries[entries] = fuse_plan(plan, entries)
    fused = by_entries[entries]
    copy = _ScaledCopy(plan, widths or node_widths(plan, counts, reads), inputs)
    return LayerRow(tuple(map(copy.layer, fused.layers)), fused.pairs, fused.rereads)


def merge_layers(merge: Merge, shapes: Sequence[tuple[int, ...]]) -> list[Layer]:
    """The layers at a meeting point of branches that write `shapes`: one concat, or a sum for every branch but one."""
    tensors = tuple(map(TensorType, shapes))
    if merge is Merge.ADD:
        return [Layer(f"add{number}", "Add", tensors[:1] * 2, tensors[:1]) for number in range(1, len(shapes))]
    joined = (shapes[0][0], sum(shape[1] for shape in shapes), *shapes[0][2:])
    return [Layer("concat", "Concat", tensors, (TensorType(joined),), MappingProxyType({"axis": 1}))]


@dataclass(frozen=True)
class _ScaledCopy:
    """Numbers of channels of a copy.

    Attributes:
        plan: what is copied.
        widths: channels of every tensor.
        inputs: how the tensors are read that the plan reads.
    """

    plan: ChannelPlan
    widths: NodeWidths
    inputs: Mapping[fx.Node, TensorChannels]

    def layer(self, fused: FusedLayer) -> Layer:
        """A layer of the copy."""
        tensors = (*fused.inputs, fused.output)
        widths = tuple(0 if tensor is None else self._width(tensor) for tensor in tensors)
        if widths not in fused.copies:
            fused.copies[widths] = self._new_layer(fused)
        return fused.copies[widths]

    def _new_layer(self, fused: FusedLayer) -> Layer:
        full, constants = fused.layer, self._constants(fused)
        inputs = (
            TensorType(constants[index].shape)
            if index in constants
            else None
            if tensor is None
            else TensorType(self._shape(tensor))
            for index, tensor in enumerate(fused.inputs)
        )
        attributes = full.attributes
        if "groups" in attributes and fused.weighted is not None:
            attributes = MappingProxyType({**attributes, "groups": self._sizes(fused.weighted)[2]})
        elif full.op in ("Attention", "GroupNorm"):
            attributes = MappingProxyType({**attributes, **self._parts(fused)})
        elif full.op == "Slice":
            attributes = MappingProxyType({**attributes, "starts": self._starts(fused)})
        return replace(
            full,
            inputs=tuple(inputs),
            outputs=(TensorType(self._shape(fused.output)),),
            attributes=attributes,
            constants=MappingProxyType(constants),
        )

    def _parts(self, fused: FusedLayer) -> dict[str, int]:
        """Heads and groups of attention, which has whole heads; groups of a normalisation, as near as channels allow."""
        full = fused.layer
        groups, channels = full.integer("groups"), self._shape(fused.output)[1]
        if full.op == "GroupNorm":
            return {"groups": math.gcd(groups, channels)}
        heads = full.integer("heads")
        kept = max(1, heads * channels // full.outputs[0].shape[1])
        return {"heads": kept, "groups": kept if groups == heads else 1}

    def _starts(self, fused: FusedLayer) -> tuple[int, ...]:
        """Where a slice begins: after the same share of the channels, but such that its result ends within the input."""
        full, read = fused.layer, fused.inputs[0]
        assert read is not None
        found, wanted, written = self._shape(read), full.ints("starts"), self._shape(fused.output)
        return tuple(
            min(start * size // whole, size - kept)
            for start, size, whole, kept in zip(wanted, found, full.type_of(0).shape, written, strict=True)
        )

    def _width(self, tensor: PlanTensor) -> int:
        """Channels of a tensor; 0 if it has none."""
        node = self.plan.read(tensor.node)
        if tensor.is_input and node in self.inputs:
            return self.inputs[node].channels
        return self.widths.get(node, 0)

    def _shape(self, tensor: PlanTensor) -> tuple[int, ...]:
        width, full = self._width(tensor), self.plan.full_widths.get(self.plan.read(tensor.node), 0)
        if width in (0, full):  # without channels, or all of them
            return tensor.shape
        # A view may have moved them from axis 1 on.
        axis = next((axis for axis, size in enumerate(tensor.shape) if axis and not size % full), None)
        return tuple(size // full * width if place == axis else size for place, size in enumerate(tensor.shape))

    def _constants(self, fused: FusedLayer) -> dict[int, np.ndarray]:
        """Constants by input: those of the operator table that depend on channels have their shapes in the copy."""
        full = fused.layer
        if full.op in ("Affine", "PRelu", "LayerNorm", "GroupNorm"):
            axis = full.integer("axis", 1)
            return {index: noise(self._shape(fused.output)[axis : axis + 1]) for index in full.constants}
        if full.op == "Attention":
            heads = self._parts(fused)["heads"]
            shapes = {index: full.type_of(index).shape for index in full.constants}
            return {n: noise((s[0], heads if s[1] > 1 else 1, *s[2:])) for n, s in shapes.items()}
        if fused.weighted is None:
            return dict(full.constants)
        reads, writes, groups = self._sizes(fused.weighted)
        kernel = full.type_of(1).shape
        if full.op == "onnx:ConvTranspose":
            shapes = {1: (reads, writes, *kernel[2:]), 2: (writes,)}
        else:
            # A transposed convolution becomes a convolution that writes several pixels of a channel side by side.
            writes *= kernel[0] // channels_of(self.plan.read(fused.weighted))
            shapes = {1: (writes, reads // groups, *kernel[2:]), 2: (writes,)}
        return {index: noise(shapes[index]) for index in full.constants}

    def _sizes(self, node: fx.Node) -> tuple[int, int, int]:
        """Input channels, output channels and groups of the convolution or dense layer of a traced node or entry."""
        node = self.plan.read(node)
        if node in self.inputs:
            return self.inputs[node].channels, self.widths[node], 1
        return layer_sizes(self.plan, node, self.widths)


@dataclass(frozen=True, eq=False)
class VaryingLayer:
    """A layer whose varying sizes are linear functions of the branch's input channels.

    Attributes:
        channels: input channels of the branch in the original network.
        low: the layer of a branch that reads `channels` channels.
        high: the layer of a branch that reads twice as many.
    """

    channels: int
    low: Layer
    high: Layer

    def at(self, channels: int) -> Layer:
        """The layer of a branch that reads `channels` channels."""
        inputs = tuple(
            None if a is None or b is None else self._tensor(a, b, channels)
            for a, b in zip(self.low.inputs, self.high.inputs, strict=True)
        )
        outputs = tuple(self._tensor(a, b, channels) for a, b in zip(self.low.outputs, self.high.outputs, strict=True))
        attributes = {
            name: self._attribute(value, self.high.attributes[name], channels)
            for name, value in self.low.attributes.items()
        }
        constants = {
            index: noise(kind.shape) for index, kind in enumerate(inputs) if kind and index in self.low.constants
        }
        return replace(
            self.low,
            inputs=inputs,
            outputs=outputs,
            attributes=MappingProxyType(attributes),
            constants=MappingProxyType(constants),
        )

    def _size(self, low: int, high: int, channels: int) -> int:
        return _linear(low, high, channels - self.channels, self.channels)

    def _tensor(self, low: TensorType, high: TensorType, channels: int) -> TensorType:
        return replace(low, shape=tuple(self._size(a, b, channels) for a, b in zip(low.shape, high.shape, strict=True)))

    def _attribute(self, low: Attribute, high: Attribute, channels: int) -> Attribute:
        if isinstance(low, int) and isinstance(high, int):
            return self._size(low, high, channels)
        if low != high and isinstance(low, tuple) and isinstance(high, tuple):  # where a slice begins
            return tuple(self._size(int(a), int(b), channels) for a, b in zip(low, high, strict=True))
        return low


@dataclass(frozen=True, eq=False)
class LayerFamily:
    """The layers of a copy of some blocks for any number of input channels.

    MACs and output channels grow linearly with the input channels, so two values of each determine them.

    Attributes:
        fixed: layers that do not depend on the input channels.
        varying: the other layers.
        channels: input channels in the original network.
        macs_at: multiply-accumulates for one sample at `channels` and at twice as many.
        width_at: output channels at `channels` and at twice as many.
    """

    fixed: LayerRow
    varying: tuple[VaryingLayer, ...]
    channels: int
    macs_at: tuple[int, int]
    width_at: tuple[int, int]

    def macs(self, channels: int) -> int:
        """Multiply-accumulates for one sample of a branch that reads `channels` channels."""
        return _linear(*self.macs_at, channels - self.channels, self.channels)

    def width(self, channels: int) -> int:
        """Channels written by a branch that reads `channels` channels."""
        return _linear(*self.width_at, channels - self.channels, self.channels)


def _linear(low: int, high: int, more: int, unit: int) -> int:
    """The value of a linear function at `unit + more`, if it is `low` at `unit` and `high` at twice that."""
    return low + (high - low) * more // unit


def layer_family(plan: ChannelPlan, counts: Sequence[int], *, exact: bool) -> LayerFamily:
    """The family of the copies of `plan` that keep `counts[i]` channel groups of group `i`.

    Args:
        plan: blocks and groups; the original channels of its source are `LayerFamily.channels`.
        counts: channel groups kept of every group.
        exact: the copy reads the original channels, in order. If no entry convolution comes first although the channels are
            coupled to others, the family has one member.
    """
    channels = channels_of(plan.source)
    low, high = ({network_input(plan.source): TensorChannels(times * channels, exact)} for times in (1, 2))
    widths = node_widths(plan, counts, low)
    row, macs, width = (
        part_layers(plan, counts, low, widths),
        part_cost(plan, counts, low, widths).macs,
        output_channels(plan, counts, low, widths),
    )
    if plan.source in plan.entries and plan.source not in needed_entries(plan, counts, inputs_of(plan, low)):
        return LayerFamily(row, (), channels, (macs, macs), (width, width))
    widths = node_widths(plan, counts, high)
    pairs = list(zip(row.layers, part_layers(plan, counts, high, widths).layers, strict=True))
    return LayerFamily(
        row.only([number for number, (a, b) in enumerate(pairs) if a is b or a.workload == b.workload]),
        tuple(VaryingLayer(channels, a, b) for a, b in pairs if a is not b and a.workload != b.workload),
        channels,
        (macs, part_cost(plan, counts, high, widths).macs),
        (width, output_channels(plan, counts, high, widths)),
    )
