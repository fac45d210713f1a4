"""The fused layers of plans, made by the passes of `nnstretch.passes`.

What is fused depends on which node reads what, not on numbers of channels. So the passes run once for all scaled copies of
a block, on a graph with the original channels whose weights have one input channel and arbitrary values.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, reduce
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import onnx_ir as ir
from torch import fx, nn

from nnstretch.branching.channels.groups import ChannelPlan, results_of
from nnstretch.branching.latency.exported_operations import ExportedOperation, exported_operation
from nnstretch.branching.latency.token_layers import token_layers
from nnstretch.branching.tracing.modules import PerChannel
from nnstretch.branching.tracing.operators import (
    WEIGHT_LAYERS,
    Role,
    channels_of,
    concat_operands,
    module_of,
    role_of,
    shape_of,
    tensor_operands,
    title_of,
)
from nnstretch.branching.tracing.trace import Block
from nnstretch.branching.transform.inherit import entry_name
from nnstretch.frontends.torch_module import OPSET_VERSION
from nnstretch.graph.layer import DOMAIN, Attribute, Layer
from nnstretch.graph.layers import GraphNode, layers
from nnstretch.passes import canonicalization, fusion

_UNKNOWN = "torch"  # domain of operations that are not exported
_WEIGHTED = "nnstretch.weighted"  # metadata of convolutions and dense layers: the number of their tensor
_BINARY = {"add": "Add", "sub": "Sub", "mul": "Mul", "div": "Div", "truediv": "Div"}


@dataclass(frozen=True)
class PlanTensor:
    """A tensor of some blocks.

    Attributes:
        node: the traced node that computes it, or one with as many channels. If a block before the blocks was dropped,
            they read another node instead (`ChannelPlan.read`).
        is_input: it is an input of the blocks. An entry convolution that reads it computes another tensor of the same `node`.
        shape: in the original network.
    """

    node: fx.Node
    is_input: bool
    shape: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class FusedLayer:
    """A layer of some blocks.

    Attributes:
        layer: with the original channels; shapes of its constants are arbitrary.
        inputs: the tensors that it reads; None for constants and absent inputs.
        output: the tensor that it computes.
        weighted: the traced convolution or dense layer with its weight; for an entry, the input before it; None for layers
            without weight.
        copies: its scaled copies, by the channels of the tensors that they read and compute.
    """

    layer: Layer
    inputs: tuple[PlanTensor | None, ...]
    output: PlanTensor
    weighted: fx.Node | None
    copies: dict[tuple[int, ...], Layer] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class FusedLayers:
    """Layers of some blocks in the order in which they run.

    Attributes:
        layers: in execution order.
        pairs: positions of the layers whose result only the next layer reads, as its input 0.
        begins_pair: only the first layer reads the blocks' input, as its input 0.
        ends_pair: the last layer computes the blocks' output.
    """

    layers: tuple[FusedLayer, ...]
    pairs: frozenset[int]
    begins_pair: bool = False
    ends_pair: bool = False

    @cached_property
    def rereads(self) -> frozenset[int]:
        """Positions of the layers whose input 0 was read by a layer before."""
        read: set[PlanTensor | None] = {None}
        found: set[int] = set()
        for position, layer in enumerate(self.layers):
            if layer.inputs and layer.inputs[0] in read - {None}:
                found.add(position)
            read.update(layer.inputs)
        return frozenset(found)

    def __add__(self, other: FusedLayers) -> FusedLayers:
        """These layers, then those of the blocks that follow."""
        count = len(self.layers)
        between = {count - 1} if self.ends_pair and other.begins_pair else set()
        pairs = self.pairs | between | {count + position for position in other.pairs}
        return FusedLayers(self.layers + other.layers, pairs, self.begins_pair, other.ends_pair)


def fuse_plan(plan: ChannelPlan, entries: Sequence[fx.Node]) -> FusedLayers:
    """Fuses the layers of `plan`.

    Args:
        plan: the blocks.
        entries: the inputs that an entry, a 1x1 convolution, reads first.
    """
    apart = plan.blocks and not any(block.skips for block in plan.blocks)
    if not apart or plan.output is not plan.blocks[-1].output:
        return _BlocksGraph(plan, plan.blocks, (plan.sources, plan.results), entries).fused()
    # Blocks between which nothing is fused are fused by themselves, once for all plans.
    parts = [plan.blocks[:1]]
    for block in plan.blocks[1:]:
        separate = len(_fuse_blocks(plan, parts[-1]).layers) + len(_fuse_blocks(plan, (block,)).layers)
        together = (*parts[-1], block)
        if len(_fuse_blocks(plan, together).layers) < separate:
            parts[-1] = together
        else:
            parts.append((block,))
    fused = [_fuse_blocks(plan, parts[0], entries), *(_fuse_blocks(plan, part) for part in parts[1:])]
    return reduce(operator.add, fused)


def _fuse_blocks(plan: ChannelPlan, blocks: tuple[Block, ...], entries: Sequence[fx.Node] = ()) -> FusedLayers:
    """Fuses consecutive blocks of a plan; the result is kept in the `meta` of their first node, as long as the network."""
    known = blocks[0].nodes[0].meta.setdefault("fused", {})
    key = (blocks, bool(entries))
    if key not in known:
        ends = (blocks[0].source,), results_of(blocks[-1].output)
        known[key] = _BlocksGraph(plan, blocks, ends, entries).fused()
    found: FusedLayers = known[key]
    return found


class _BlocksGraph:
    """An ONNX graph of consecutive blocks of a plan; the names of its tensors begin with their positions in `tensors`."""

    def __init__(
        self,
        plan: ChannelPlan,
        blocks: Sequence[Block],
        ends: tuple[Sequence[fx.Node], Sequence[fx.Node]],
        entries: Sequence[fx.Node],
    ) -> None:
        self.plan = plan
        self.graph = ir.Graph((), (), nodes=(), opset_imports={"": OPSET_VERSION, DOMAIN: 1, _UNKNOWN: 1})
        self.tensors: list[tuple[fx.Node, bool]] = []
        self.values: dict[fx.Node, ir.Value] = {}
        sources, results = ends
        for tensor in sources:
            self.values[plan.read(tensor)] = self._value(tensor, is_input=True)
            self.graph.inputs.append(self._read(tensor))
        for tensor in sources:
            if plan.read(tensor) in entries:
                self._enter(tensor)
        for node in (node for block in blocks for node in block.nodes):
            if role_of(node) not in (Role.CONSTANT, Role.SHAPE) and shape_of(node) is not None:
                self._visit(node)
        self.graph.outputs.extend(dict.fromkeys(map(self._read, results)))

    def fused(self) -> FusedLayers:
        """The layers after the passes."""
        model = ir.Model(self.graph, ir_version=10)
        ir.passes.Sequential(*canonicalization(), *fusion())(model)
        found = layers(model)
        results = [value.name for value in self.graph.outputs]
        readers = Counter(name for node in found for name in node.inputs)
        readers.update(results)
        pairs = (
            number
            for number, (first, second) in enumerate(pairwise(found))
            if second.inputs[0] == first.outputs[0] and readers[first.outputs[0]] == 1
        )
        source = self.graph.inputs[0].name
        return FusedLayers(
            tuple(map(self._fused_layer, found)),
            frozenset(pairs),
            begins_pair=bool(found) and found[0].inputs[0] == source and readers[source] == 1,
            ends_pair=bool(found) and [found[-1].outputs[0]] == results,
        )

    def _fused_layer(self, node: GraphNode) -> FusedLayer:
        layer = node.layer
        inputs = [
            None if tensor is None or name is None or index in layer.constants else self._tensor(name, tensor.shape)
            for index, (name, tensor) in enumerate(zip(node.inputs, layer.inputs, strict=True))
        ]
        # Passes that replace a layer by several copy its metadata to all of them.
        weighted = node.metadata.get(_WEIGHTED) if 1 in layer.constants else None
        return FusedLayer(
            layer,
            tuple(inputs),
            self._tensor(node.outputs[0], layer.outputs[0].shape),
            None if weighted is None else self.tensors[int(weighted)][0],
        )

    def _tensor(self, name: str, shape: tuple[int, ...]) -> PlanTensor:
        return PlanTensor(*self.tensors[int(name.partition("/")[0])], shape)

    # -- building ------------------------------------------------------------------------------------------------------

    def _read(self, node: fx.Node) -> ir.Value:
        return self.values[self.plan.read(node)]

    def _value(self, node: fx.Node, *, is_input: bool = False) -> ir.Value:
        """A new tensor of the shape that `node` computes."""
        shape = shape_of(node)
        assert shape is not None
        self.tensors.append((node, is_input))
        return _value(str(len(self.tensors) - 1), shape)

    def _constant(self, name: str, array: np.ndarray | ir.TensorProtocol) -> ir.Value:
        tensor = ir.Tensor(array, name=name) if isinstance(array, np.ndarray) else array
        assert isinstance(tensor.shape, ir.Shape)
        value = ir.Value(name=name, shape=tensor.shape, type=ir.TensorType(tensor.dtype), const_value=tensor)
        self.graph.register_initializer(value)
        return value

    def _add(
        self,
        node: fx.Node,
        op: str,
        inputs: Sequence[ir.Value],
        attributes: Mapping[str, int | str | Sequence[int]] = MappingProxyType({}),
        *,
        constants: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
        domain: str = "",
        name: str = "",
    ) -> None:
        """Adds the node that computes the tensor of `node`.

        Args:
            node: the traced node.
            op: the ONNX operator.
            inputs: what it reads.
            attributes: of the ONNX node.
            constants: shapes of the inputs that follow, by their role; a node with a weight is marked as weighted.
            domain: of the operator.
            name: of the ONNX node; empty: that of `node`.
        """
        value = self.values[self.plan.read(node)] = self._value(node)
        own = [self._constant(f"{value.name}/{role}", noise(shape)) for role, shape in constants.items()]
        made = ir.node(op, [*inputs, *own], attributes or None, domain=domain, outputs=[value], name=name or node.name)
        if "weight" in constants:
            made.metadata_props[_WEIGHTED] = str(value.name)
        self.graph.append(made)

    def _enter(self, tensor: fx.Node) -> None:
        name = entry_name(self.plan, self.plan.read(tensor))
        self._add(tensor, "Conv", [self._read(tensor)], constants={"weight": (channels_of(tensor), 1, 1, 1)}, name=name)

    def _visit(self, node: fx.Node) -> None:
        role = role_of(node)
        operation = exported_operation(node)
        if operation is not None and self._scales(node, operation):
            self._copy(node, operation)
        elif role in WEIGHT_LAYERS and isinstance(module_of(node), (nn.Conv2d, nn.Linear)):
            self._weighted(node)
        elif isinstance(module := module_of(node) if node.op == "call_module" else None, nn.ConvTranspose2d):
            self._transposed(node, module)
        elif role is Role.NORM and isinstance(module_of(node), (nn.BatchNorm1d, nn.BatchNorm2d, PerChannel)):
            shape = (channels_of(node),)
            read = self._read(node.all_input_nodes[0])
            self._add(node, "Affine", [read], constants={"scale": shape, "shift": shape}, domain=DOMAIN)
        elif role is Role.CONCAT:
            self._add(node, "Concat", [self._read(part) for part in concat_operands(node)], {"axis": 1})
        elif role is Role.BINARY:
            self._add(node, _BINARY[title_of(node)], [self._read(tensor) for tensor in tensor_operands(node)])
        else:
            writer = _LayerWriter(self, node)
            result = token_layers(writer, node, self._operands(node))
            if result is None:
                # Its arguments are not known here, so it equals no other one that reads the same.
                self._add(node, title_of(node), self._tensors_read(node), {"traced": node.name}, domain=_UNKNOWN)
            else:
                wanted = shape_of(node)
                assert wanted is not None
                self.values[self.plan.read(node)] = writer.view(result, wanted)

    def _operands(self, node: fx.Node) -> list[ir.Value]:
        """The computed tensors among the arguments of a node, in their order, each as often as it is one."""
        found = list[fx.Node]()
        fx.map_arg((node.args, node.kwargs), found.append)
        return [self._read(operand) for operand in found if self.plan.read(operand) in self.values]

    def _tensors_read(self, node: fx.Node) -> list[ir.Value]:
        """The computed tensors that a node reads, directly or as parts of tuples; a constant if it reads none."""
        found, waiting = dict[ir.Value, None](), [self.plan.read(operand) for operand in node.all_input_nodes]
        for operand in waiting:
            if operand in self.values:
                found[self.values[operand]] = None
            elif role_of(operand) not in (Role.CONSTANT, Role.SHAPE):
                waiting += map(self.plan.read, operand.all_input_nodes)
        return list(found) or [self._constant(f"{len(self.tensors)}/constant", noise((1,)))]

    def _weighted(self, node: fx.Node) -> None:
        module, read = module_of(node), [self._read(node.all_input_nodes[0])]
        assert isinstance(module, (nn.Linear, nn.Conv2d))
        kernel = () if isinstance(module, nn.Linear) else module.kernel_size
        constants: dict[str, tuple[int, ...]] = {"weight": (channels_of(node), 1, *kernel)}
        if module.bias is not None:
            constants["bias"] = (channels_of(node),)
        if isinstance(module, nn.Linear):
            self._add(node, "Gemm", read, {"transB": 1}, constants=constants)
            return
        padding: dict[str, str | Sequence[int]] = (
            {"auto_pad": "VALID" if module.padding == "valid" else "SAME_UPPER"}
            if isinstance(module.padding, str)
            else {"pads": [*module.padding, *module.padding]}
        )
        sizes = {"strides": list(module.stride), "dilations": list(module.dilation)}
        self._add(node, "Conv", read, {"group": module.groups, **sizes, **padding}, constants=constants)

    def _transposed(self, node: fx.Node, module: nn.ConvTranspose2d) -> None:
        """A transposed convolution; a grouped one, which keeps its channels, has its full weight."""
        scales = role_of(node) is Role.CONV
        read, written = (1, channels_of(node)) if scales else (module.in_channels, module.out_channels // module.groups)
        constants: dict[str, tuple[int, ...]] = {"weight" if scales else "taps": (read, written, *module.kernel_size)}
        if module.bias is not None:
            constants["bias"] = (channels_of(node),)
        pads = [int(pad) for pad in module.padding]
        attributes: dict[str, int | str | Sequence[int]] = {
            "auto_pad": "NOTSET",
            "group": module.groups,
            "kernel_shape": list(module.kernel_size),
            "strides": list(module.stride),
            "dilations": list(module.dilation),
            "pads": [*pads, *pads],
            "output_padding": list(module.output_padding),
        }
        self._add(node, "ConvTranspose", [self._read(node.all_input_nodes[0])], attributes, constants=constants)

    def _copy(self, node: fx.Node, operation: ExportedOperation) -> None:
        """Puts a copy of an exported operation into this graph."""
        source, result = self._read(node.all_input_nodes[0]), self._value(node)
        values: dict[ir.Value, ir.Value] = {operation.source: source}
        for position, part in enumerate(operation.nodes):
            for value in part.inputs:
                if value is not None and value.const_value is not None and value not in values:
                    values[value] = self._constant(f"{result.name}/constant{len(values)}", value.const_value)
            for value in part.outputs:
                shape = source.shape if operation.elementwise else value.shape
                values[value] = _value(f"{result.name}/{len(values)}", () if shape is None else shape.numpy())
            if operation.result in part.outputs:
                values[operation.result] = result
            self.graph.append(
                ir.Node(
                    part.domain,
                    part.op_type,
                    [None if value is None else values[value] for value in part.inputs],
                    part.attributes.values(),
                    outputs=[values[value] for value in part.outputs],
                    name=f"{node.name}/{position}" if position else node.name,
                )
            )
        self.values[node] = values[operation.result]

    def _scales(self, node: fx.Node, operation: ExportedOperation) -> bool:
        """Whether all tensors of an operation have their channels, and nothing else that depends on them, on axis 1."""
        shapes = [value.shape for part in operation.nodes for value in part.outputs]
        return operation.elementwise or all(
            shape is not None and len(shape) in (2, 4) and shape.numpy()[1] % self.plan.full_widths[node] == 0
            for shape in shapes
        )


class _LayerWriter:
    """Adds the layers of one traced node to the graph of its blocks."""

    def __init__(self, blocks: _BlocksGraph, node: fx.Node) -> None:
        self._blocks = blocks
        self._node = node

    def layer(
        self,
        op: str,
        inputs: Sequence[ir.Value],
        shape: Sequence[int],
        attributes: Mapping[str, Attribute] = MappingProxyType({}),
        constants: Mapping[str, tuple[int, ...]] = MappingProxyType({}),
        /,
    ) -> ir.Value:
        """Adds a layer; its result has as many channels as that of the node."""
        name = f"{self._blocks._value(self._node).name}/{op.lower()}"
        own = [self._blocks._constant(f"{name}/{role}", noise(size)) for role, size in constants.items()]
        return self._append(op, [*inputs, *own], name, shape, attributes)

    def view(self, value: ir.Value, shape: Sequence[int], /) -> ir.Value:
        """A Reshape, unless the tensor has the shape; the result has as many channels as `value`."""
        assert value.shape is not None
        if tuple(shape) == value.shape.numpy():
            return value
        name = f"{value.name}/view{len(self._blocks.graph)}"
        return self._append("Reshape", [value], name, shape, MappingProxyType({}))

    def _append(
        self, op: str, inputs: Sequence[ir.Value], name: str, shape: Sequence[int], attributes: Mapping[str, Attribute]
    ) -> ir.Value:
        result = _value(name, shape)
        made = ir.node(op, inputs, dict(attributes) or None, domain=DOMAIN, outputs=[result], name=self._node.name)
        self._blocks.graph.append(made)
        return result


def _value(name: str, shape: Sequence[int]) -> ir.Value:
    return ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))


_SHARED = np.random.default_rng(0).standard_normal(1 << 16).astype(np.float32)


@cache
def noise(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Normal noise of any shape, for layers whose values do not matter: a read-only view of shared memory."""
    odd = (1, 3, 5, 7)
    length = sum((size - 1) * step for size, step in zip(shape, odd, strict=False)) + 1
    base = _SHARED if length <= len(_SHARED) else np.resize(_SHARED, length)
    strides = tuple(step * base.itemsize for step in odd[: len(shape)])
    return np.lib.stride_tricks.as_strided(base, shape, strides, writeable=False)
