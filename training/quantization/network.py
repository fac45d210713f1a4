"""A network in quantisation-aware training, and its int8 file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrize

from nnstretch.errors import ModelError
from nnstretch.frontends.onnx_file import load, save
from nnstretch.frontends.torch_from_onnx.builder import Builder, Built
from nnstretch.frontends.torch_from_onnx.convert import unchecked
from nnstretch.graph.metadata import TRAINED_KEY
from nnstretch.quantization.int8_file import write_int8
from nnstretch.quantization.placement import carry_placement
from nnstretch.quantization.ranges import Range, write_ranges
from nnstretch.training.quantization.graph import FAKE_QUANTIZE, RoundedGraph, clipped_to, rounded_graph
from nnstretch.training.quantization.rounding import ActivationQuantizer, BiasQuantizer, WeightQuantizer

_SPATIAL = {nn.BatchNorm1d: 0, nn.BatchNorm2d: 2, nn.BatchNorm3d: 3}
_TOLERANCE = 0.1
"""Relative difference of the outputs from the file's, up to which the network is taken for the same: a step here and there."""


@dataclass(frozen=True, eq=False)
class FloatGraph:
    """What a network in training was made from. Copies of the network share it.

    Attributes:
        model: folded, in float32; weights of layers that stay in float32 are their own.
        ranges: of the activations before the training.
        kept: nodes that stay in float32.
    """

    model: ir.Model
    ranges: Mapping[str, Range]
    kept: tuple[str, ...]

    def __deepcopy__(self, memo: dict[int, Any]) -> FloatGraph:
        return self

    def int8(self, weights: Mapping[str, np.ndarray], parameters: Mapping[str, tuple[float, int]] | None) -> ir.Model:
        """The graph of the int8 file.

        Args:
            weights: constants of `model` that are replaced.
            parameters: scales and zero points of activations; None: those of the ranges.

        Raises:
            ModelError: ONNX Runtime cannot quantise the network.
        """
        network = self.model.clone()
        for name, array in weights.items():
            network.graph.initializers[name].const_value = ir.tensor(array, name=name)
        with TemporaryDirectory(prefix="nnstretch-int8-") as folder:
            ranges, source, file = (Path(folder) / name for name in ("ranges.json", "network.onnx", "int8.onnx"))
            write_ranges(self.ranges, ranges)
            save(network, source)
            write_int8(source, ranges, file, keep=self.kept, parameters=parameters)
            made = load(file)
        made.metadata_props.update(self.model.metadata_props)
        carry_placement(self.model, made)
        return made


@dataclass(frozen=True)
class _Weight:
    """A trained parameter: its path in the network, and the constant of the graph that it is.

    Attributes:
        path: of the parameter, without parametrisation.
        constant: name in the float graph.
        is_turned: whether the constant is the transposed matrix.
    """

    path: str
    constant: str
    is_turned: bool


class QuantizedNetwork(nn.Module):
    """A network whose forward pass rounds weights and activations where and as its int8 file does.

    It trains like any other network (`training.loop.trainer.train`). Batch norms are folded into the layers before them, with
    the statistics of the float network; those that cannot be folded are constant, and so are tensors that no layer multiplies
    with. Everything else is trained in float32 and rounded in every pass.

    Attributes:
        network: the layers, with `ActivationQuantizer` between them.
        constants: of the graph that are not trained, so that weights hold all that the file has.
    """

    network: fx.GraphModule
    constants: nn.Module

    def __init__(self, source: FloatGraph, ranges: str) -> None:
        """Makes the network of a folded graph.

        Args:
            source: the graph, and where activations lie.
            ranges: how ranges follow the training, of `rounding.RANGES`.

        Raises:
            ModelError: an operator has no counterpart in torch, or ONNX Runtime cannot quantise it.
        """
        super().__init__()
        self._source, self._ranges = source, ranges
        rounded = rounded_graph(source.int8({}, None), source.model)
        self._activations = {name: f"quantizers.{number}" for number, name in enumerate(rounded.activations)}
        self.network, sources = self._converted(rounded)
        self._weights = tuple(self._trained_weights(rounded, sources))
        self._freeze_others()
        self.constants = self._other_constants()
        self._round_weights(rounded, sources)
        self.eval()

    def forward(self, *inputs: Tensor) -> Any:
        """What the network in float32 takes and returns, for batches of any size."""
        return self.network(*inputs)

    @property
    def settings(self) -> dict[str, Any]:
        """What weights say of this network, from which `structure` builds it again."""
        return {"ranges": self._ranges, "kept": list(self._source.kept)}

    def int8_graph(self) -> ir.Model:
        """The graph of the int8 file: QuantizeLinear and DequantizeLinear with exactly the scales of this network."""
        weights = {}
        for one in self._weights:
            array = self._parameter(one.path).detach().cpu().numpy()
            weights[one.constant] = np.array(array.T if one.is_turned else array, order="C")
        for name, value in zip(self._constant_names, self.constants.buffers(), strict=True):
            weights[name] = np.array(value.cpu().numpy(), order="C")
        parameters = {name: self._quantizer(name).parameters_of_file for name in self._activations}
        made = self._source.int8(weights, parameters)
        made.metadata_props[TRAINED_KEY] = "1"
        return made

    def check(self, example: Mapping[str, np.ndarray]) -> None:
        """Compares the outputs with those of the file, as ONNX Runtime computes it in float32.

        Args:
            example: inputs of one run by name.

        Raises:
            ModelError: they differ by more than roundings explain.
        """
        from nnstretch.quantization.runs import open_run

        graph = self.int8_graph()
        with TemporaryDirectory(prefix="nnstretch-check-") as folder, torch.no_grad():
            save(graph, Path(folder) / "int8.onnx")
            wanted = open_run(Path(folder) / "int8.onnx")(example)
            found = self(*(torch.from_numpy(example[str(value.name)]) for value in graph.graph.inputs))
        for made, value in zip([found] if isinstance(found, Tensor) else found, wanted, strict=True):
            error = float(np.linalg.norm(made.numpy() - value)) / max(float(np.linalg.norm(value)), 1e-12)
            if not error <= _TOLERANCE:
                raise ModelError(
                    f"the network in training differs from its int8 file by {error:.2g} of the outputs, so it cannot be "
                    "trained through quantisation; quantise it after training with `nnstretch quantize`"
                )

    # -- construction --------------------------------------------------------------------------------------------

    def _converted(self, rounded: RoundedGraph) -> tuple[fx.GraphModule, Mapping[str, str]]:
        """The layers, and the constants that their parameters were made from."""

        def fake_quantize(build: Builder, node: ir.Node) -> Built:
            tensor = node.attributes.get_string("tensor", "")
            bounds = clipped_to(self._source.model, tensor)
            make = partial(ActivationQuantizer, *self._source.ranges[tensor], self._ranges, bounds)
            return build.elementwise(self._activations[tensor], make, build.tensor(node.inputs[0]))

        made = unchecked(rounded.model, "the network in int8", {FAKE_QUANTIZE: fake_quantize})
        for path, layer in list(made.module.named_modules()):
            if isinstance(layer, _BatchNorm):
                made.module.set_submodule(path, FrozenNorm(layer))
        # Where only the shape of a tensor is read, its rounding is gone.
        present = {path for path, _ in made.module.named_modules()}
        self._activations = {name: path for name, path in self._activations.items() if path in present}
        return made.module, made.sources

    def _trained_weights(self, rounded: RoundedGraph, sources: Mapping[str, str]) -> list[_Weight]:
        """The parameters that are constants of the float graph as they are, or transposed."""
        found, constants = [], self._source.model.graph.initializers
        for path, title in sources.items():
            name = rounded.names.get(title, title)
            value = constants[name].const_value if name in constants else None
            if value is None:
                continue
            array, parameter = value.numpy(), self._parameter(path).detach().numpy()
            is_turned = array.ndim == 2 and _is_turned(rounded.model, title)
            if np.array_equal(array.T if is_turned else array, parameter):
                found.append(_Weight(path, name, is_turned))
        return found

    def _freeze_others(self) -> None:
        trained = {one.path for one in self._weights}
        for path, parameter in self.network.named_parameters():
            is_scale = isinstance(self.network.get_submodule(path.rpartition(".")[0]), ActivationQuantizer)
            parameter.requires_grad_(path in trained or is_scale)

    @cached_property
    def _constant_names(self) -> list[str]:
        """Constants of the graph in float32 that are not trained."""
        trained = {one.constant for one in self._weights}
        initializers = self._source.model.graph.initializers.items()
        return [str(name) for name, value in initializers if value.dtype == ir.DataType.FLOAT and name not in trained]

    def _other_constants(self) -> nn.Module:
        """Their values, as buffers."""
        found = nn.Module()
        for number, name in enumerate(self._constant_names):
            value = self._source.model.graph.initializers[name].const_value
            assert value is not None
            found.register_buffer(str(number), torch.from_numpy(np.array(value.numpy())))
        return found

    def _round_weights(self, rounded: RoundedGraph, sources: Mapping[str, str]) -> None:
        """Puts a rounding before weights and biases of every layer that is int8 in the file."""
        turned = {one.path for one in self._weights if one.is_turned}
        for path, title in sources.items():
            if title in rounded.weights:
                axis = rounded.weights[title].axis
                axis = 1 - axis if axis is not None and path in turned else axis
                self._parametrise(path, WeightQuantizer(axis))
        for path, title in sources.items():
            layer = self.network.get_submodule(path.rpartition(".")[0])
            if title in rounded.biases and parametrize.is_parametrized(layer, "weight"):
                self._parametrise(path, BiasQuantizer(layer, self._quantizer(rounded.biases[title].tensor)))

    def _parametrise(self, path: str, rounding: nn.Module) -> None:
        owner, _, name = path.rpartition(".")
        parametrize.register_parametrization(self.network.get_submodule(owner), name, rounding)

    def _parameter(self, path: str) -> Tensor:
        """A parameter as it is trained, before it is rounded."""
        owner, _, name = path.rpartition(".")
        module = self.network.get_submodule(owner)
        if parametrize.is_parametrized(module, name):
            parametrizations: Any = module.parametrizations
            return cast("Tensor", parametrizations[name].original)
        return cast("Tensor", getattr(module, name))

    def _quantizer(self, tensor: str) -> ActivationQuantizer:
        return cast("ActivationQuantizer", self.network.get_submodule(self._activations[tensor]))


class FrozenNorm(nn.Module):
    """A batch norm that no layer before it takes up: its scale and shift per channel are constant."""

    scale: Tensor
    shift: Tensor

    def __init__(self, norm: _BatchNorm) -> None:
        super().__init__()
        mean, variance = cast("Tensor", norm.running_mean), cast("Tensor", norm.running_var)
        scale = torch.rsqrt(variance + norm.eps)
        scale = scale * norm.weight.detach() if norm.affine else scale
        shift = norm.bias.detach() - mean * scale if norm.affine else -mean * scale
        shape = 1, -1, *[1] * _SPATIAL[type(norm)]
        self.register_buffer("scale", scale.view(shape))
        self.register_buffer("shift", shift.view(shape))

    def forward(self, x: Tensor) -> Tensor:
        """A tensor `N x C x …`."""
        found: Tensor = x * self.scale + self.shift
        return found


def structure(model: ir.Model, settings: Mapping[str, Any]) -> QuantizedNetwork:
    """A network for weights that a training wrote.

    Args:
        model: the graph of the network in float32, with any weights.
        settings: of `QuantizedNetwork.settings`.
    """
    from nnstretch.quantization.int8_file import folded
    from nnstretch.quantization.keep_float import own_weights

    with TemporaryDirectory(prefix="nnstretch-int8-") as folder:
        network = folded(model, Path(folder))
    network.metadata_props.update(model.metadata_props)
    kept: Sequence[str] = settings["kept"]
    own_weights(network, kept)
    names = [str(value.name) for node in network.graph for value in node.outputs if value.name]
    names += [str(value.name) for value in network.graph.inputs]
    return QuantizedNetwork(FloatGraph(network, dict.fromkeys(names, (0.0, 1.0)), tuple(kept)), settings["ranges"])


def _is_turned(model: ir.Model, title: str) -> bool:
    """Whether layers multiply with a matrix of `inputs x outputs`; torch's are `outputs x inputs`."""
    readers = model.graph.initializers[title].consumers() if title in model.graph.initializers else ()
    return any(
        node.op_type == "MatMul" or (node.op_type == "Gemm" and not node.attributes.get_int("transB", 0))
        for node in readers
    )
