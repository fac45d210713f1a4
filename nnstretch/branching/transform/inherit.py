"""Scaled copies of consecutive blocks that inherit the weights of the original layers.

While nodes are copied, every tensor carries the **origins** of its channels: the numbers of the original
channels that they stand for. A channel-mixing layer takes the weight columns of its input's origins, divided
by how often each occurs. If every original channel occurs once or more, the layer computes what it computed
before.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, fx, nn

from nnstretch.branching.channels.groups import ChannelPlan, Indices, network_input
from nnstretch.branching.channels.scaling import TensorChannels, kept_positions, needed_entries
from nnstretch.branching.tracing.modules import ChannelShuffle, ChannelSlice, HeadSlice
from nnstretch.branching.tracing.operators import (
    Role,
    channels_of,
    concat_operands,
    module_of,
    role_of,
    shape_of,
    tensor_operands,
)
from nnstretch.branching.tracing.tokens import Attention
from nnstretch.errors import DesignError

_Module = TypeVar("_Module", bound=nn.Module)
_Layer = TypeVar("_Layer", nn.Conv2d, nn.ConvTranspose2d, nn.Linear)

ENTRY = "entry"
"""Name of a copy's 1x1 convolution that reads its source; those of skip inputs have a number appended."""


@dataclass(frozen=True, eq=False)
class _Channels:
    """Origins of a tensor's channels; a flattened map has `spread` consecutive elements per channel."""

    origins: Indices
    spread: int = 1

    def columns(self) -> Indices:
        """Positions in dimension 1 of the original tensor."""
        return (self.origins[:, None] * self.spread + np.arange(self.spread)).reshape(-1)

    def column_weights(self) -> Tensor:
        """The reciprocal of each channel's number of occurrences, for every element of dimension 1."""
        occurrences = np.bincount(self.origins)[self.origins]
        return torch.from_numpy(1.0 / np.repeat(occurrences, self.spread))


@dataclass(frozen=True, eq=False)
class ChannelOrigins:
    """Origins of a tensor's channels.

    Attributes:
        origins: numbers of the original channels, in the tensor's order.
        exact: they are the original channels, each once and in order, because no meeting point lies before.
            Origins that are exact by chance after a meeting point do not count: cost estimates, which ignore
            origins, have to agree.
    """

    origins: Indices
    exact: bool


def scaled_copy(
    plan: ChannelPlan, selection: Mapping[int, Indices], reads: Mapping[fx.Node, ChannelOrigins] = MappingProxyType({})
) -> tuple[fx.GraphModule, Indices]:
    """Copies the blocks of `plan` with the channel groups in `selection`.

    The copy reads the plan's source and skip inputs. Its layers keep their original names.

    Args:
        plan: blocks and dependency groups.
        selection: channel groups kept of every dependency group, ascending.
        reads: origins of the network's tensors that the copy reads; those left out have all channels.

    Returns:
        The copy, and the origins of its output (empty for several outputs).

    Raises:
        DesignError: a sum or grouped convolution would read channels that do not match.
    """
    every = {tensor: np.arange(channels_of(tensor), dtype=np.int64) for tensor in plan.sources}
    inputs = {t: reads.get(network_input(t)) or ChannelOrigins(origins, exact=True) for t, origins in every.items()}
    return _Copier(plan, selection).run(inputs)


def entry_name(plan: ChannelPlan, tensor: fx.Node) -> str:
    """Name of the 1x1 convolution that reads an input."""
    number = plan.sources.index(tensor)
    return f"{ENTRY}{number}" if number else ENTRY


def is_exact(origins: Indices, channels: int) -> bool:
    """Whether `origins` are the original channels, each once and in order."""
    return len(origins) == channels and bool((origins == np.arange(channels)).all())


class _Copier:
    """One pass over the nodes of a plan."""

    def __init__(self, plan: ChannelPlan, selection: Mapping[int, Indices]) -> None:
        self.plan = plan
        self.selection = selection
        self.channels: dict[fx.Node, _Channels] = {}
        self.copies: dict[fx.Node, fx.Node] = {}
        self.modules: dict[str, object] = {}
        self.graph = fx.Graph()
        self._shared: dict[int, object] = {}  # deepcopy memo: layers that share a tensor still do

    def run(self, read: Mapping[fx.Node, ChannelOrigins]) -> tuple[fx.GraphModule, Indices]:
        for number, tensor in enumerate(self.plan.sources):
            self.channels[tensor] = _Channels(read[tensor].origins)
            self.copies[tensor] = self.graph.placeholder(f"skip{number}" if number else "x")
        counts = [len(self.selection[group.index]) for group in self.plan.groups]
        inputs = {tensor: TensorChannels(len(found.origins), found.exact) for tensor, found in read.items()}
        for tensor in needed_entries(self.plan, counts, inputs):
            self._enter(tensor)
        for node in self.plan.nodes:
            self._copy(node)
        output = self.plan.output
        returned = output.args[0] if output.op == "output" else output
        self.graph.output(fx.map_arg(returned, lambda node: self.copies[self.plan.read(node)]))
        branch = fx.GraphModule(self.modules, self.graph, class_name="ScaledCopy")
        written = [self.channels[self.plan.read(result)].origins for result in self.plan.results]
        return branch, written[0] if len(written) == 1 else np.empty(0, dtype=np.int64)

    def _enter(self, tensor: fx.Node) -> None:
        """Adds an entry: each kept channel is the mean of the input channels with its origin, or 0 if there is none."""
        origins = self.channels[tensor].origins
        kept = kept_positions(self.plan, tensor, self.selection)
        matches = kept[:, None] == origins[None, :]
        weight = matches / np.maximum(matches.sum(axis=1, keepdims=True), 1)
        entry = nn.Conv2d(len(origins), len(kept), 1, bias=False, device="meta")
        entry.weight = nn.Parameter(torch.from_numpy(weight[:, :, None, None]).to(_dtype(self.plan)))
        name = entry_name(self.plan, tensor)
        self.modules[name] = entry
        self.copies[tensor] = self.graph.create_node("call_module", name, (self.copies[tensor],))
        self.channels[tensor] = _Channels(kept)

    def _copy(self, node: fx.Node) -> None:
        if node.op == "call_module":
            self.modules[str(node.target)] = self._module(node)
        elif node.op == "get_attr":
            self.modules[str(node.target)] = copy.deepcopy(node.meta["tensor"], self._shared)
        self.copies[node] = self.graph.node_copy(node, lambda read: self.copies[self.plan.read(read)])
        self.copies[node].meta = {}
        shape = shape_of(node)
        if shape is not None and len(shape) > 1 and role_of(node) is not Role.CONSTANT:
            self.channels[node] = self._written(node)

    def _read(self, node: fx.Node) -> _Channels:
        """Channels of the first tensor that `node` reads."""
        return self.channels[self.plan.read(node.all_input_nodes[0])]

    def _written(self, node: fx.Node) -> _Channels:
        role = role_of(node)
        if node in self.plan.produced:
            return _Channels(kept_positions(self.plan, node, self.selection))
        if role is Role.BINARY:
            return self._summed(node)
        if role is Role.CONCAT:
            return self._concatenated(node)
        if role is Role.ATTENTION:
            return self._attended(node)
        if role in (Role.SLICE, Role.SHUFFLE):
            return self._rearranged(node)
        if role is Role.PIXELS:
            size = int(module_of(node).upscale_factor) ** 2  # type: ignore[arg-type]
            pixels = self._read(node).origins[::size] // size
            self._check_whole(node, pixels, size)
            return _Channels(pixels)
        found = self._read(node)
        if role is Role.FLATTEN:
            source = shape_of(self.plan.read(node.all_input_nodes[0]))
            assert source is not None
            return _Channels(found.origins, channels_of(node) // source[1])
        return found

    def _summed(self, node: fx.Node) -> _Channels:
        operands = [self.plan.read(tensor) for tensor in tensor_operands(node)]
        widest = max(operands, key=channels_of)
        found = self.channels[widest]
        for other in operands:
            same = np.array_equal(self.channels[other].origins, found.origins)
            if channels_of(other) == channels_of(widest) and not same:
                raise DesignError(
                    f"{node.name} combines tensors that would keep different channels; leave its stage unscaled"
                )
        return found

    def _concatenated(self, node: fx.Node) -> _Channels:
        parts = [self.plan.read(part) for part in concat_operands(node)]
        pieces, offset = [], 0
        for part in parts:
            found = self.channels[part]
            if found.spread != 1:
                raise DesignError(f"{node.name} concatenates flattened maps; concatenate before flattening")
            pieces.append(found.origins + offset)
            offset += channels_of(part)
        return _Channels(np.concatenate(pieces))

    def _attended(self, node: fx.Node) -> _Channels:
        """Channels of attention, whose inputs must have whole heads, in one order."""
        module, heads = module_of(node), self._heads(node)
        assert isinstance(module, Attention)
        return _Channels((heads[:, None] * module.value_width + np.arange(module.value_width)).reshape(-1))

    def _heads(self, node: fx.Node) -> Indices:
        """Heads that attention keeps."""
        module = module_of(node)
        assert isinstance(module, Attention)
        # One map may be read as several of the operands.
        parts = [self.channels[self.plan.read(operand)].origins for operand in node.args]  # type: ignore[arg-type]
        heads = parts[0][:: module.query_width] // module.query_width
        widths = (module.query_width, module.query_width, module.value_width)
        for place, (origins, width) in enumerate(zip(parts, widths, strict=True)):
            found = np.arange(1) if module.shared and place else heads
            if not np.array_equal(origins, (found[:, None] * width + np.arange(width)).reshape(-1)):
                raise DesignError(f"the heads of {node.name} would be split; leave its stage unscaled")
        return heads

    def _rearranged(self, node: fx.Node) -> _Channels:
        """Channels of a slice or shuffle; its input must keep equally many channels of each part."""
        module, tensor = module_of(node), self.plan.read(node.all_input_nodes[0])
        origins, whole = self.channels[tensor].origins, np.arange(channels_of(tensor), dtype=np.int64)
        if isinstance(module, ChannelSlice):
            expected = whole[module.first : module.stop]
            first, stop = module.bounds(len(origins))
            found = origins[first:stop] - module.first
            fits = len(found) > 0 and bool(np.isin(origins[first:stop], expected).all())
        elif isinstance(module, HeadSlice):
            heads = origins[:: module.width] // module.width
            fits = np.array_equal(origins, (heads[:, None] * module.width + np.arange(module.width)).reshape(-1))
            found = (heads[:, None] * module.length + np.arange(module.length)).reshape(-1)
        else:
            assert isinstance(module, ChannelShuffle)
            parts = whole.reshape(module.groups, -1)
            fits = len(origins) % module.groups == 0
            rows = origins.reshape(module.groups, -1) if fits else origins[None]
            fits = fits and bool((rows // parts.shape[1] == np.arange(len(rows))[:, None]).all())
            # The position to which the shuffle moves a channel of a part.
            found = (rows % parts.shape[1] * module.groups + rows // parts.shape[1]).T.reshape(-1)
        if not fits:
            raise DesignError(f"{node.name} would take other channels than in the original; leave its stage unscaled")
        return _Channels(found)

    def _module(self, node: fx.Node) -> nn.Module:
        """The layer that `node` calls, for the channels that are kept."""
        module, role = module_of(node), role_of(node)
        if isinstance(module, nn.Conv2d) and role is not Role.OPAQUE:
            return self._convolution(node, module)
        if isinstance(module, nn.ConvTranspose2d) and role is Role.CONV:
            return self._transposed_convolution(node, module)
        if isinstance(module, nn.Linear) and role is Role.LINEAR:
            return self._dense(node, module)
        if role is Role.NORM:
            return _norm(module, self._read(node).columns())
        if role is Role.GROUP_NORM:
            return self._group_norm(node, module)
        if isinstance(module, Attention) and module.has_head_bias:
            return _of_heads(module, self._heads(node))
        return copy.deepcopy(module, self._shared)

    def _convolution(self, node: fx.Node, module: nn.Conv2d) -> nn.Conv2d:
        read, role = self._read(node), role_of(node)
        rows = read.origins if role is Role.DEPTHWISE else kept_positions(self.plan, node, self.selection)
        weight = module.weight.detach()[torch.from_numpy(rows)]
        groups = 1
        if role is Role.CONV:
            weight = weight[:, torch.from_numpy(read.origins)] * read.column_weights().to(weight)[:, None, None]
        else:
            groups = self._kept_groups(node, module, rows)
        result = _with_rows(module, weight, rows)
        result.in_channels, result.out_channels, result.groups = len(read.origins), len(rows), groups
        return result

    def _transposed_convolution(self, node: fx.Node, module: nn.ConvTranspose2d) -> nn.ConvTranspose2d:
        read, rows = self._read(node), kept_positions(self.plan, node, self.selection)
        weight = module.weight.detach()[torch.from_numpy(read.origins)][:, torch.from_numpy(rows)]
        result = _with_rows(module, weight * read.column_weights().to(weight)[:, None, None, None], rows)
        result.in_channels, result.out_channels = len(read.origins), len(rows)
        return result

    def _kept_groups(self, node: fx.Node, module: nn.Conv2d, rows: Indices) -> int:
        """Number of kept groups of a grouped convolution; its input must have their channels, in order."""
        kept = rows[:: (width := module.out_channels // module.groups)] // width
        self._check_whole(node, kept, module.in_channels // module.groups)
        return len(kept)

    def _group_norm(self, node: fx.Node, module: nn.Module) -> nn.Module:
        assert isinstance(module, nn.GroupNorm)
        origins, width = self._read(node).origins, module.num_channels // module.num_groups
        groups = origins[::width] // width
        self._check_whole(node, groups, width)
        result = _norm(module, origins)
        result.num_groups = len(groups)  # type: ignore[assignment]
        return result

    def _check_whole(self, node: fx.Node, groups: Indices, width: int) -> None:
        """Checks that a layer reads whole groups of `width` channels, in order."""
        if not np.array_equal(self._read(node).origins, (groups[:, None] * width + np.arange(width)).reshape(-1)):
            raise DesignError(f"the groups of {node.target} would be split; leave its stage unscaled")

    def _dense(self, node: fx.Node, module: nn.Linear) -> nn.Linear:
        read = self._read(node)
        rows = kept_positions(self.plan, node, self.selection)
        columns = torch.from_numpy(read.columns())
        weight = module.weight.detach()
        # Rows of a large matrix are copied only if some are dropped.
        if not is_exact(rows, module.out_features):
            weight = weight[torch.from_numpy(rows)]
        result = _with_rows(module, weight[:, columns] * read.column_weights().to(weight), rows)
        result.in_features, result.out_features = len(columns), len(rows)
        return result


def _with_rows(module: _Layer, weight: Tensor, rows: Indices) -> _Layer:
    """A copy of a convolution or dense layer with this weight and the bias of `rows`."""
    result = _share_tensors(module)
    result.weight = _parameter(weight, module.weight)
    if module.bias is not None:
        result.bias = _parameter(module.bias.detach()[torch.from_numpy(rows)], module.bias)
    return result


def _norm(module: nn.Module, columns: Indices) -> nn.Module:
    """A layer whose tensors have one element per channel, for the channels in `columns`."""
    result = _share_tensors(module)
    index = torch.from_numpy(columns)
    for name, parameter in module.named_parameters(recurse=False):
        setattr(result, name, _parameter(parameter.detach()[index], parameter))
    for name, buffer in module.named_buffers(recurse=False):
        setattr(result, name, buffer[index].clone() if buffer.dim() else buffer.clone())
    for attribute in ("num_features", "num_parameters", "num_channels"):
        if hasattr(result, attribute):
            setattr(result, attribute, len(columns))
    return result


def _of_heads(module: Attention, heads: Indices) -> Attention:
    """Attention with the biases of some heads."""
    result = _share_tensors(module)
    assert module.bias is not None
    bias = module.bias.detach()[:, torch.from_numpy(heads)]
    result.bias = _parameter(bias, module.bias) if isinstance(module.bias, nn.Parameter) else bias.clone()
    return result


def _share_tensors(module: _Module) -> _Module:
    """A copy that shares the original's tensors, which the caller replaces; so large tensors are not copied twice."""
    kept: dict[int, object] = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    return copy.deepcopy(module, kept)


def _parameter(value: Tensor, original: Tensor) -> nn.Parameter:
    return nn.Parameter(value.contiguous(), requires_grad=original.requires_grad)


def _dtype(plan: ChannelPlan) -> torch.dtype:
    """Data type of the weights of the plan's layers."""
    for node in plan.nodes:
        if node.op == "call_module":
            for parameter in module_of(node).parameters():
                return parameter.dtype
    return torch.float32
