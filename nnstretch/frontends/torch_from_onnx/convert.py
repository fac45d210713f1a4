"""An ONNX graph as a torch module, checked against ONNX Runtime."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir
import torch
from torch import Tensor, fx

from nnstretch.errors import ModelError, UsageError
from nnstretch.frontends.silence import quiet
from nnstretch.frontends.torch_from_onnx import (
    activations,
    arithmetic,
    layers,
    movement,
    normalizations,
    pooling,
    spatial,
)
from nnstretch.frontends.torch_from_onnx.arithmetic import torch_dtype
from nnstretch.frontends.torch_from_onnx.builder import Builder, Converter, Converters, UnsupportedError, refusal
from nnstretch.frontends.torch_from_onnx.check import check_against_onnxruntime
from nnstretch.frontends.torch_from_onnx.simplify import simplified
from nnstretch.graph.layer import DOMAIN
from nnstretch.passes.rewriting import DEFAULT_DOMAINS, shape_of

_MODULES = (layers, normalizations, activations, pooling, spatial, arithmetic, movement)
_OPERATORS: Converters = {name: one for module in _MODULES for name, one in module.OPERATORS.items()}
_CANONICAL: Converters = {
    name: one for module in (normalizations, activations, movement) for name, one in module.CANONICAL.items()
}
_CONTROL = ("If", "Loop", "Scan")
_QUANTISED = (
    "QuantizeLinear",
    "DequantizeLinear",
    "QLinearConv",
    "ConvInteger",
    "MatMulInteger",
    "DynamicQuantizeLinear",
)
_FLOAT_ONLY = (
    "networks are branched and trained in float32; take the model before its quantisation, then `nnstretch quantize`"
)
_SELECTIONS = ("NonMaxSuppression", "NonZero", "Unique", "Compress")


@dataclass(frozen=True)
class Interface:
    """What an ONNX file says of a network beside its graph, and what an export of the network says again.

    Attributes:
        inputs, outputs: names in the file's order.
        metadata: of the file, such as how images become inputs.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    metadata: dict[str, str] = field(default_factory=dict)

    def applied(self, model: ir.Model) -> ir.Model:
        """`model` with these names of inputs and outputs, and with this metadata where it has none.

        The numbers of inputs and outputs are those of the interface.
        """
        graph = model.graph
        wanted = {*self.inputs, *self.outputs}
        ends = (*graph.inputs, *graph.outputs)
        for value in ir.convenience.create_value_mapping(graph).values():
            if value.name in wanted and value not in ends:
                value.name = f"{value.name}_"
        for value, name in zip(ends, (*self.inputs, *self.outputs), strict=True):
            value.name = name
        for key, text in self.metadata.items():
            model.metadata_props.setdefault(key, text)
        return model


@dataclass(frozen=True, eq=False)
class ConvertedNetwork:
    """A torch module that was an ONNX graph.

    Attributes:
        module: in evaluation mode; takes the graph's inputs in their order, with batches of any size, and returns its
            output, or a tuple of them. Parameters are called after the file's weights.
        example_inputs: of the file's shapes; images are noise.
        interface: names and metadata of the file.
        sources: path of a parameter -> the constant of the graph that it was made from, where a layer reads one.
    """

    module: fx.GraphModule
    example_inputs: tuple[Tensor, ...]
    interface: Interface
    sources: Mapping[str, str] = field(default_factory=dict)

    @property
    def image(self) -> Tensor:
        """The example input of a network with one input.

        Raises:
            UsageError: it has several, or none.
        """
        if len(self.example_inputs) != 1:
            raise UsageError(
                f"the network reads {len(self.example_inputs)} tensors ({', '.join(self.interface.inputs) or 'none'}); one "
                "that is branched or trained reads images alone"
            )
        return self.example_inputs[0]


def to_torch(model: ir.Model, source: str) -> ConvertedNetwork:
    """The torch module that computes what an ONNX graph does, with copies of its weights.

    Convolutions, dense layers, normalisations and activations are modules of torch, also where the exporter spelt them
    out; batch normalisation stays one. The module is run for two images, and its answers are compared with those of
    ONNX Runtime for each.

    Args:
        model: not fused, with static shapes; it is not changed. The first axis of its inputs is the batch.
        source: what the model is called in messages.

    Raises:
        ModelError: an operator has no counterpart in torch, the graph is quantised or not of float32, takes its own batch
            alone, or the module's answers are not those of ONNX Runtime.
    """
    made = unchecked(model, source)
    check_against_onnxruntime(made.module, made.example_inputs, model, source)
    return made


def unchecked(model: ir.Model, source: str, more: Mapping[str, Converter] | None = None) -> ConvertedNetwork:
    """What `to_torch` returns, not compared with ONNX Runtime.

    Args:
        model: as for `to_torch`.
        source: what the model is called in messages.
        more: converters of operators of the domain `nnstretch` that only this graph has.

    Raises:
        ModelError: an operator has no counterpart in torch.
    """
    graph = simplified(model).graph
    interface = Interface(
        tuple(str(value.name) for value in model.graph.inputs),
        tuple(str(value.name) for value in model.graph.outputs),
        dict(model.metadata_props),
    )
    examples = tuple(_example(value, source) for value in graph.inputs)
    build = Builder(frozenset(model.graph.initializers))
    with quiet():
        _add_inputs(build, graph, examples)
        for node in graph:
            _convert(build, node, source, {**_CANONICAL, **(more or {})})
        build.finish(graph.outputs)
    module = fx.GraphModule(dict(build.attributes), build.graph, class_name=_class_name(source)).eval()
    return ConvertedNetwork(module, examples, interface, build.sources)


def _add_inputs(build: Builder, graph: ir.Graph, examples: tuple[Tensor, ...]) -> None:
    images = examples[0].shape[:1] if examples else ()
    taken: set[str] = set()
    for number, (value, example) in enumerate(zip(graph.inputs, examples, strict=True)):
        name = re.sub(r"\W+", "_", str(value.name), flags=re.ASCII)
        name = name if name.isidentifier() and name not in taken else f"input_{number}"
        taken.add(name)
        build.add_input(value, name, example, is_batch=example.ndim > 1 and example.shape[:1] == images)


def _convert(build: Builder, node: ir.Node, source: str, canonical: Converters) -> None:
    """Adds what a node computes; `canonical` has the operators of the domain `nnstretch`."""
    if node.outputs and build.is_bound(node.outputs[0]):
        return
    table = canonical if node.domain == DOMAIN else _OPERATORS if node.domain in DEFAULT_DOMAINS else {}
    converter = table.get(node.op_type)
    if converter is None and node.op_type in _QUANTISED and node.domain in DEFAULT_DOMAINS:
        raise ModelError(f"{source} is quantised; {_FLOAT_ONLY}")
    if converter is None:
        raise refusal(source, node, _why_not(node))
    try:
        build.convert(node, converter)
    except UnsupportedError as error:
        raise refusal(source, node, str(error)) from error


def _why_not(node: ir.Node) -> str:
    """Why an operator has no counterpart."""
    if node.domain not in (*DEFAULT_DOMAINS, DOMAIN):
        return "an operator of a custom domain"
    if node.op_type in _CONTROL or "Sequence" in node.op_type or node.op_type == "Optional":
        return "loops, conditions and sequences are not layers"
    if node.op_type in _SELECTIONS:
        return "the size of its result depends on the image; leave the post-processing out of the model"
    return "an operator without a counterpart in torch here"


def _example(value: ir.Value, source: str) -> Tensor:
    """Noise of an input's shape; for integers, zeros and ones."""
    shape = shape_of(value)
    if shape is None or 0 in shape:
        raise ModelError(f"{source}: input {value.name!r} has no static shape; give one, or export it again")
    if value.dtype in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16, ir.DataType.DOUBLE):
        assert value.dtype is not None
        raise ModelError(
            f"{source}: input {value.name!r} is {value.dtype.name}; networks are branched and trained in float32: export "
            "the model in float32"
        )
    try:
        dtype = torch_dtype(value.dtype)
    except UnsupportedError as error:
        raise ModelError(
            f"{source}: input {value.name!r}: {error}; give a model that reads float32 or integers"
        ) from error
    generator = torch.Generator().manual_seed(0)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=dtype)
    return torch.randint(0, 2, shape, generator=generator).to(dtype)


def _class_name(source: str) -> str:
    """A class name like that of the network: the file's name."""
    stem = re.split(r"[\\/]", source)[-1].rpartition(".")[0] or source
    name = re.sub(r"\W+", "_", stem, flags=re.ASCII).strip("_")
    return name if name.isidentifier() else f"Network_{name}"
