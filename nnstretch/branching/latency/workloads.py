"""The fused layers of a scaled copy, without exporting and optimising it.

A search needs the latency of hundreds of branches, which have few distinct layers. Building, exporting and optimising each
branch would take longer than measuring these. So the layers of a plan are fused once, and get the shapes of every copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from weakref import WeakKeyDictionary

import numpy as np
from torch import fx

from nnstretch.branching.channels.groups import ChannelPlan
from nnstretch.branching.channels.scaling import UNSCALED, SkipInputs, TensorChannels, inputs_of, node_widths
from nnstretch.branching.design.cost import layer_sizes
from nnstretch.branching.design.design import Merge
from nnstretch.branching.latency.fused_plan import FusedLayer, FusedLayers, PlanTensor, fuse_plan
from nnstretch.branching.latency.noise import noise
from nnstretch.branching.transform.inherit import needed_entries
from nnstretch.graph.layer import Layer, TensorType, fused_pair

_fused: WeakKeyDictionary[ChannelPlan, dict[tuple[fx.Node, ...], FusedLayers]] = WeakKeyDictionary()


@dataclass(frozen=True)
class LayerRow:
    """Layers in the order in which they run.

    Attributes:
        layers: the layers.
        pairs: numbers of layers whose only consumer is the next layer's input 0: one routine may compute both.
    """

    layers: tuple[Layer, ...]
    pairs: frozenset[int] = frozenset()

    @cached_property
    def joined(self) -> Mapping[int, Layer]:
        """Number of the first layer of a pair -> the fusion group of both."""
        return {n: fused_pair(self.layers[n], self.layers[n + 1]) for n in sorted(self.pairs)}

    def only(self, numbers: Sequence[int]) -> LayerRow:
        """The layers with these numbers, ascending."""
        place = {number: i for i, number in enumerate(numbers)}
        pairs = {place[n] for n in self.pairs if n in place and n + 1 in place}
        return LayerRow(tuple(self.layers[n] for n in numbers), frozenset(pairs))


def part_layers(
    plan: ChannelPlan, counts: Sequence[int], in_channels: int, *, exact: bool, skips: SkipInputs = UNSCALED
) -> LayerRow:
    """The layers of a copy of `plan` that keeps `counts[i]` channel groups of group `i`. Weights are noise.

    Args:
        plan: blocks and groups.
        counts: channel groups kept of every group.
        in_channels: channels of the tensor that the copy reads.
        exact: those are the original channels, each once and in order.
        skips: how the other tensors are read.
    """
    inputs = inputs_of(plan, in_channels, skips, exact=exact)
    exact_inputs = {tensor: read.exact for tensor, read in inputs.items()}
    entries = tuple(needed_entries(plan, complete=plan.keeps_all(counts), exact=exact_inputs))
    by_entries = _fused.setdefault(plan, {})
    if entries not in by_entries:
        by_entries[entries] = fuse_plan(plan, entries)
    fused = by_entries[entries]
    copy = _ScaledCopy(plan, node_widths(plan, counts, in_channels, inputs), inputs)
    return LayerRow(tuple(map(copy.layer, fused.layers)), fused.pairs)


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


@dataclass(frozen=True)
class _ScaledCopy:
    """Numbers of channels of a copy.

    Attributes:
        plan: what is copied.
        widths: channels of every tensor.
        inputs: how the tensors are read that the plan reads.
    """

    plan: ChannelPlan
    widths: dict[fx.Node, int]
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
        return replace(
            full,
            inputs=tuple(inputs),
            outputs=(TensorType(self._shape(fused.output)),),
            attributes=attributes,
            constants=MappingProxyType(constants),
        )

    def _width(self, tensor: PlanTensor) -> int:
        """Channels of a tensor; 0 if it has none."""
        node = self.plan.read(tensor.node)
        if tensor.is_input and node in self.inputs:
            return self.inputs[node].channels
        return self.widths.get(node, 0)

    def _shape(self, tensor: PlanTensor) -> tuple[int, ...]:
        width = self._width(tensor)
        if not width:
            return tensor.shape
        batch, channels, *sizes = tensor.shape
        return (batch, channels // self.plan.full_widths[self.plan.read(tensor.node)] * width, *sizes)

    def _constants(self, fused: FusedLayer) -> dict[int, np.ndarray]:
        """Constants by input: those of the operator table that depend on channels have their shapes in the copy."""
        full = fused.layer
        if full.op == "Affine":
            return {index: noise(self._shape(fused.output)[1:2]) for index in (1, 2)}
        if fused.weighted is None:
            return dict(full.constants)
        reads, writes, groups = self._sizes(fused.weighted)
        shapes = {1: (writes, reads // groups, *full.type_of(1).shape[2:]), 2: (writes,)}
        return {index: noise(shapes[index]) for index in full.constants}

    def _sizes(self, node: fx.Node) -> tuple[int, int, int]:
        """Input channels, output channels and groups of the convolution or dense layer of a traced node or entry."""
        node = self.plan.read(node)
        if node in self.inputs:
            return self.inputs[node].channels, self.widths[node], 1
        return layer_sizes(self.plan, node, self.widths)
