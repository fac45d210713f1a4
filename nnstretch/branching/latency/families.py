"""The layers of a branch as functions of its number of input channels.

The input channels of a branch depend on the widths of all branches that meet before it, so a search sees every branch with
dozens of them. Only its first layers change, and their sizes grow linearly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from nnstretch.branching.channels.groups import ChannelPlan
from nnstretch.branching.channels.scaling import output_channels
from nnstretch.branching.design.cost import part_cost
from nnstretch.branching.latency.noise import noise
from nnstretch.branching.latency.workloads import LayerRow, part_layers
from nnstretch.branching.transform.inherit import needs_entry
from nnstretch.graph.layer import Attribute, Layer, TensorType


@dataclass(frozen=True, eq=False)
class VaryingLayer:
    """A layer whose varying sizes are linear functions of the branch's input channels.

    Attributes:
        low: the layer where `low_channels` are read.
        high: the layer where `high_channels` are read.
    """

    low_channels: int
    low: Layer
    high_channels: int
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
        return low + (high - low) * (channels - self.low_channels) // (self.high_channels - self.low_channels)

    def _tensor(self, low: TensorType, high: TensorType, channels: int) -> TensorType:
        return replace(low, shape=tuple(self._size(a, b, channels) for a, b in zip(low.shape, high.shape, strict=True)))

    def _attribute(self, low: Attribute, high: Attribute, channels: int) -> Attribute:
        if isinstance(low, int) and isinstance(high, int):
            return self._size(low, high, channels)
        return low


@dataclass(frozen=True, eq=False)
class LayerFamily:
    """The layers of a copy of some blocks for any number of input channels.

    Attributes:
        fixed: layers that do not depend on the input channels.
        varying: the other layers.
        low_channels: input channels in the original network.
        low_macs: multiply-accumulates for one sample at `low_channels`.
        macs_per_channel: growth of the MACs per input channel.
        low_width: output channels at `low_channels`.
        width_per_channel: growth of the output channels per input channel.
    """

    fixed: LayerRow
    varying: tuple[VaryingLayer, ...]
    low_channels: int
    low_macs: int
    macs_per_channel: int
    low_width: int
    width_per_channel: int

    def macs(self, channels: int) -> int:
        """Multiply-accumulates for one sample of a branch that reads `channels` channels."""
        return self.low_macs + self.macs_per_channel * (channels - self.low_channels)

    def width(self, channels: int) -> int:
        """Channels written by a branch that reads `channels` channels."""
        return self.low_width + self.width_per_channel * (channels - self.low_channels)


def layer_family(plan: ChannelPlan, counts: Sequence[int], channels: int, *, exact: bool) -> LayerFamily:
    """The family of the copies of `plan` that keep `counts[i]` channel groups of group `i`.

    Args:
        plan: blocks and groups.
        counts: channel groups kept of every group.
        channels: of the input in the original network.
        exact: the copy reads exactly these channels, in order. If they are tied to others, no convolution comes first and
            the family has one member.
    """
    low = part_layers(plan, counts, channels, exact=exact)
    cost = part_cost(plan, counts, channels, exact=exact)
    width = output_channels(plan, counts, channels)
    if plan.has_entry and not needs_entry(plan, plan.source, complete=plan.keeps_all(counts), exact=exact):
        return LayerFamily(low, (), channels, cost.macs, 0, width, 0)
    fixed: list[int] = []
    varying: list[VaryingLayer] = []
    high = part_layers(plan, counts, 2 * channels, exact=exact)
    for number, (a, b) in enumerate(zip(low.layers, high.layers, strict=True)):
        if a.workload == b.workload:
            fixed.append(number)
        else:
            varying.append(VaryingLayer(channels, a, 2 * channels, b))
    more = part_cost(plan, counts, 2 * channels, exact=exact).macs
    wider = output_channels(plan, counts, 2 * channels)
    return LayerFamily(
        low.only(fixed),
        tuple(varying),
        channels,
        cost.macs,
        (more - cost.macs) // channels,
        width,
        (wider - width) // channels,
    )
