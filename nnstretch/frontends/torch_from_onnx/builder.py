"""The torch.fx graph that grows node by node while an ONNX graph is read."""

from __future__ import annotations

import copy
import hashlib
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, fx, nn

from nnstretch.errors import ModelError, first_line
from nnstretch.frontends.torch_from_onnx.batch import BatchAxis
from nnstretch.frontends.torch_from_onnx.names import Paths, is_named, layer_path
from nnstretch.passes.rewriting import constant, shape_of

_LARGER = 3
"""Factor of the batch for which the shapes of all tensors are computed beside those of the file."""
_LARGE = "of the larger batch"
"""Key of a node's value for that batch, a tensor without data."""
_KEEPING_SHAPE = (
    nn.BatchNorm1d,
    nn.BatchNorm2d,
    nn.BatchNorm3d,
    nn.LayerNorm,
    nn.GroupNorm,
    nn.InstanceNorm2d,
    nn.RMSNorm,
    nn.Dropout,
    nn.ReLU,
    nn.ReLU6,
    nn.Hardtanh,
    nn.Sigmoid,
    nn.SiLU,
    nn.GELU,
    nn.Hardswish,
    nn.Hardsigmoid,
)
"""Modules whose result has the shape of their input; torch takes long to tell."""

Built = fx.Node | Sequence[fx.Node]
"""What a converter returns: the node of an operator's output, or one for each of its outputs."""


class UnsupportedError(Exception):
    """An operator, or a form of it, that has no counterpart; the text says what about it."""


Converter = Callable[["Builder", ir.Node], Built]
"""Adds what an ONNX operator computes to the graph. Raises UnsupportedError."""
Converters = Mapping[str, Converter]
"""Operator of ONNX -> its converter."""


class Builder:
    """A graph of torch functions and modules that grows in the order of an ONNX graph.

    Shapes are those of the file's batch. Every node is also evaluated, without data, for a batch that is larger, which
    shows where the images of a batch lie in a tensor, and whether an operator takes other batches at all.

    Attributes:
        graph: of torch.fx.
        attributes: path -> module, parameter or buffer that the graph reads.
        sources: path of a parameter of a layer -> the constant of the ONNX graph that it was made from.
    """

    def __init__(self, trainable: frozenset[str]) -> None:
        """Begins with an empty graph.

        Args:
            trainable: names of the constants that the file has; those computed from them are buffers.
        """
        self.graph = fx.Graph()
        self.attributes: dict[str, nn.Module | Tensor] = {}
        self.sources: dict[str, str] = {}
        self._trainable = trainable
        self._nodes: dict[ir.Value, fx.Node] = {}
        self._batches: dict[ir.Value, BatchAxis] = {}
        self._images = 1
        self._reader: ir.Node | None = None
        self._paths = Paths()
        self._layers: dict[tuple[str, ...], str] = {}
        self._shapes: dict[str, nn.Module] = {}

    # -- values of the ONNX graph ---------------------------------------------------------------------------------

    def add_input(self, value: ir.Value, name: str, example: Tensor, *, is_batch: bool) -> None:
        """Adds an input of the network.

        Args:
            value: of the ONNX graph.
            name: a valid name of an argument.
            example: of the value's shape and type.
            is_batch: whether its first axis counts the images of the batch.
        """
        node = self.graph.placeholder(name)
        shape = list(example.shape)
        if is_batch:
            self._images = shape[0]
            shape[0] *= _LARGER
            self._batches[value] = BatchAxis(0)
        node.meta[_LARGE] = torch.empty(shape, dtype=example.dtype, device="meta")
        self._nodes[value] = node

    def convert(self, node: ir.Node, converter: Converter) -> None:
        """Adds what an ONNX node computes.

        Raises:
            UnsupportedError: torch has no counterpart, or other batches are impossible.
        """
        self._reader = node
        self._bind(node, converter(self, node))

    def _bind(self, node: ir.Node, built: Built) -> None:
        """Takes over what a converter built as the outputs of an ONNX node.

        Raises:
            UnsupportedError: the shapes are not those of the ONNX node, or other batches are impossible.
        """
        parts = [built] if isinstance(built, fx.Node) else list(built)
        for value, part in zip(node.outputs, parts, strict=False):
            batch = self._batch_after(node, value, part)
            self._nodes[value] = part
            if batch is not None:
                self._batches[value] = batch

    def absorb(self, node: ir.Node, value: ir.Value, built: fx.Node) -> None:
        """Lets `value`, which a later node of the ONNX graph computes, be what `built` makes for `node`."""
        self._bind(node, built)
        self._nodes[value] = built
        if node.outputs[0] in self._batches:
            self._batches[value] = self._batches[node.outputs[0]]

    def is_bound(self, value: ir.Value) -> bool:
        """Whether a value was built already."""
        return value in self._nodes

    def batch_axis(self, value: ir.Value) -> BatchAxis | None:
        """Where the images of the batch lie in a value; None if it does not depend on the batch."""
        return self._batches.get(value)

    def images(self, value: ir.Value) -> fx.Node:
        """The length of the batch axis of a value, as a number that the module computes."""
        return self.method("size", self.tensor(value), self._batches[value].axis)

    def tensor(self, value: ir.Value | None) -> fx.Node:
        """The node of a tensor; a constant becomes a parameter or a buffer."""
        if value is None:
            raise UnsupportedError("an input is missing")
        if value not in self._nodes:
            array = self.constant(value)
            name = str(value.name)
            if not is_named(value) and self._reader is not None:
                name = f"{layer_path(self._reader)}.{self._reader.op_type.lower()}"
            return self.attribute(name, array, learnable=self._is_learnable(value, array))
        return self._nodes[value]

    def operand(self, value: ir.Value | None) -> fx.Node | float | int | bool:
        """The node of a tensor, or the number that a constant with one element holds."""
        array = None if value is None else constant(value)
        if array is None or array.size != 1:
            return self.tensor(value)
        number: float | int | bool = array.reshape(()).item()
        return number

    def constant(self, value: ir.Value | None, what: str = "an input") -> np.ndarray:
        """The value of a constant.

        Raises:
            UnsupportedError: it is absent or computed in the run.
        """
        array = constant(value)
        if array is None:
            raise UnsupportedError(f"{what} is not a constant")
        return array

    def shape(self, value: ir.Value | None) -> tuple[int, ...]:
        """The shape of a value for the file's batch.

        Raises:
            UnsupportedError: it is not known before the run, or holds no element.
        """
        shape = shape_of(value)
        if shape is None:
            raise UnsupportedError("a shape depends on what is computed in the run")
        if 0 in shape:
            raise UnsupportedError(f"a tensor of shape {list(shape)} has no elements")
        return shape

    def axes(self, value: ir.Value | None) -> int:
        """Number of axes of a value."""
        return len(self.shape(value))

    # -- nodes of the torch graph ---------------------------------------------------------------------------------

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        """Adds a call of a function of nodes and Python values."""
        return self._evaluated(self.graph.call_function(function, args, kwargs), function)

    def method(self, name: str, *args: Any, **kwargs: Any) -> fx.Node:
        """Adds a call of a method of the first argument."""
        return self._evaluated(
            self.graph.call_method(name, args, kwargs), lambda it, *a, **k: getattr(it, name)(*a, **k)
        )

    def parts(self, several: fx.Node, count: int) -> list[fx.Node]:
        """The parts of a node that stands for a tuple."""
        return [self.call(operator.getitem, several, index) for index in range(count)]

    def layer(
        self,
        node: ir.Node,
        module: nn.Module,
        x: fx.Node,
        tensors: Mapping[str, np.ndarray | Tensor | None] | None = None,
        weights: Sequence[ir.Value | None] = (),
    ) -> fx.Node:
        """Adds a call of a module, called as the file calls the layer.

        Args:
            node: of the ONNX graph.
            module: on the device `meta`, unless it has no parameters.
            x: its input.
            tensors: parameter or buffer of the module -> value, copied; None where the module has none.
            weights: constants of the node. Layers that read the same matrix or kernel share the module.
        """
        is_shared = any(value is not None and len(shape_of(value) or ()) > 1 for value in weights)
        named = (str(value.name) for value in weights if value is not None)
        key = (type(module).__name__, repr(module), _digest(tensors or {}) if is_shared else "", *named)
        if is_shared and key in self._layers:
            return self._module_call(self._layers[key], x)
        path = self._paths.reserve(layer_path(node, weights), type(module).__name__.lower())
        self._shapes[path] = module.eval()
        self.attributes[path] = _filled(copy.deepcopy(module), tensors or {})
        for name, value in zip(("weight", "bias"), weights, strict=False):
            if value is not None and (tensors or {}).get(name) is not None:
                self.sources[f"{path}.{name}"] = str(value.name)
        self._layers[key] = path
        return self._module_call(path, x)

    def elementwise(self, path: str, module: Callable[[], nn.Module], x: fx.Node) -> fx.Node:
        """Adds a call of a module that keeps the shape of its input; calls of one path share the module."""
        if path not in self.attributes:
            self.attributes[path] = module()
        node = self.graph.call_module(path, (x,))
        node.meta[_LARGE] = x.meta[_LARGE]
        return node

    def attribute(self, name: str, array: np.ndarray, *, learnable: bool) -> fx.Node:
        """Adds a parameter or a buffer with a copy of `array`, called after `name`."""
        path = self._paths.reserve(name.replace("/", "."), "constant")
        tensor = torch.from_numpy(np.array(array))
        self.attributes[path] = nn.Parameter(tensor) if learnable else tensor
        node = self.graph.get_attr(path)
        node.meta[_LARGE] = tensor.to("meta")
        return node

    def reshape(self, x: fx.Node, source: ir.Value, result: ir.Value) -> fx.Node:
        """Adds a reshape of `source`, whose node is `x`, to the shape of `result`, for batches of any size.

        Raises:
            UnsupportedError: the images of the batch would spread over several axes.
        """
        before, after = self.shape(source), self.shape(result)
        if before == after:
            return x
        found = self._batches.get(source)
        if found is None:
            return self.call(torch.reshape, x, after)
        batch = found.reshaped(before, after, self._images)
        if batch is None:
            raise UnsupportedError(
                f"it reshapes {list(before)} to {list(after)}, which spreads the images of the batch over several axes"
            )
        if len(after) == 2 < len(before) and batch.axis == found.axis == 0 and after[0] == before[0]:
            made = self.call(torch.flatten, x, 1)
        else:
            made = self.call(torch.reshape, x, tuple(-1 if i == batch.axis else n for i, n in enumerate(after)))
        made.meta["batch"] = batch
        return made

    def finish(self, outputs: Sequence[ir.Value]) -> None:
        """Ends the graph: one output as a tensor, several as a tuple."""
        found = tuple(map(self.tensor, outputs))
        self.graph.output(found[0] if len(found) == 1 else found)

    def _batch_after(self, node: ir.Node, value: ir.Value, built: fx.Node) -> BatchAxis | None:
        """Where the images lie in an output, by its shapes for two batches."""
        shape = shape_of(value)
        if shape is None:
            if value.uses() or value.is_graph_output():
                raise UnsupportedError("the shape of its output depends on what is computed in the run")
            return None
        larger = tuple(built.meta[_LARGE].shape)
        differing = [i for i, (small, large) in enumerate(zip(shape, larger, strict=False)) if small != large]
        if len(shape) != len(larger) or len(differing) > 1:
            raise UnsupportedError(f"torch makes a tensor of shape {list(larger)} where {list(shape)} is expected")
        if not differing:
            return None
        (axis,) = differing
        sources = [source for source in node.inputs if source is not None and source in self._batches]
        if larger[axis] != _LARGER * shape[axis] or not sources:
            raise UnsupportedError("it works for the file's batch alone; export the model with a dynamic batch")
        stated: BatchAxis | None = built.meta.get("batch")
        found = self._batches[sources[0]]
        return stated or BatchAxis(axis, found.outer, found.inner)

    def _is_learnable(self, value: ir.Value, array: np.ndarray) -> bool:
        """Whether a constant is a parameter: one that the author named, or a vector such as a layer scale.

        Exporters also make up constants of other shapes, such as the anchors of a detector, which no training may change.
        """
        is_weight = is_named(value) or array.size == max(array.shape, default=0)
        return array.dtype == np.float32 and str(value.name) in self._trainable and is_weight

    def _module_call(self, path: str, x: fx.Node) -> fx.Node:
        node, module = self.graph.call_module(path, (x,)), self._shapes[path]
        if isinstance(module, _KEEPING_SHAPE):
            node.meta[_LARGE] = x.meta[_LARGE]
            return node
        return self._evaluated(node, module)

    def _evaluated(self, node: fx.Node, function: Callable[..., Any]) -> fx.Node:
        """Notes what a node makes of the larger batch."""
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda operand: operand.meta[_LARGE])
        try:
            with torch.no_grad():
                node.meta[_LARGE] = function(*args, **kwargs)
        except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError) as error:
            raise UnsupportedError(f"torch refuses it: {first_line(error)[:200]}") from error
        return node


def _digest(tensors: Mapping[str, np.ndarray | Tensor | None]) -> str:
    """A digest of parameters: layers with one matrix may have biases and factors of their own."""
    found = hashlib.blake2b()
    for name, value in sorted(tensors.items()):
        if value is not None:
            found.update(name.encode())
            found.update(np.ascontiguousarray(value).data)
    return found.hexdigest()


def _filled(module: nn.Module, tensors: Mapping[str, np.ndarray | Tensor | None]) -> nn.Module:
    """The module with copies of these tensors as its parameters and buffers."""
    for name, array in tensors.items():
        if array is None:
            continue
        tensor = torch.from_numpy(np.array(array)) if isinstance(array, np.ndarray) else array
        current = getattr(module, name)
        if current is not None and tuple(current.shape) != tuple(tensor.shape):
            raise UnsupportedError(f"{name} has the shape {list(tensor.shape)}, wanted is {list(current.shape)}")
        if name in module._parameters:
            setattr(module, name, nn.Parameter(tensor))
        else:
            module.register_buffer(name, tensor)
    return module


def refusal(source: str, node: ir.Node, reason: str) -> ModelError:
    """The error for a node that cannot become torch's."""
    name = f" {node.name!r}" if node.name else ""
    kind = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
    return ModelError(
        f"{source} cannot become a torch module: {kind}{name}: {reason}; give the module itself as FILE.py:FACTORY, or a "
        "model without this operator"
    )
