"""From a network in float32 to a file in int8."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal, get_args

import numpy as np
import onnx_ir as ir

from nnstretch.errors import ModelError, UsageError
from nnstretch.frontends.onnx_file import load, save
from nnstretch.graph.metadata import TRAINED_KEY
from nnstretch.quantization.activations import Activations
from nnstretch.quantization.adaptive_rounding import RoundedLayer, Rounding, round_adaptively
from nnstretch.quantization.bias_correction import correct_biases
from nnstretch.quantization.equalization import equalize
from nnstretch.quantization.feeds import Feeds, checked_feeds
from nnstretch.quantization.int8_file import folded, write_int8
from nnstretch.quantization.keep_float import KeepFloat, own_weights
from nnstretch.quantization.placement import carry_placement
from nnstretch.quantization.ranges import Method, Range, activation_ranges, write_ranges
from nnstretch.quantization.sensitivity import (
    LayerError,
    OutputError,
    fewest_kept,
    layer_errors,
    layer_groups,
    signal_to_noise,
)
from nnstretch.support.progress import Progress, silent
from nnstretch.support.words import counted

METHODS: Sequence[str] = get_args(Method)
RoundingName = Literal["nearest", "adaptive"]
ROUNDINGS: Sequence[str] = get_args(RoundingName)


@dataclass(frozen=True)
class QuantizationOptions:
    """How a network is quantised.

    Attributes:
        method: how ranges of activations are chosen.
        keep_float: layers that stay in float32.
        max_error: largest relative error of the outputs; the most sensitive layers stay in float32 until it is reached.
        sensitivity: the error that each layer causes is measured.
        equalize: ranges of channels are equalised across layers first.
        bias_correction: biases take the mean effect of rounded weights back.
        reduce_range: weights are within ±64, with which CPUs that have AVX2 but not VNNI compute faster.
        rounding: how weights become integers: the nearest ones, or those that change a layer's outputs least.
    """

    method: Method = "minmax"
    keep_float: KeepFloat = field(default_factory=KeepFloat)
    max_error: float | None = None
    sensitivity: bool = False
    equalize: bool = False
    bias_correction: bool = False
    reduce_range: bool = False
    rounding: RoundingName = "nearest"

    def __post_init__(self) -> None:
        """Checks the values.

        Raises:
            UsageError: there is no such method or rounding, or the error is no positive number.
        """
        if self.method not in METHODS:
            raise UsageError(f"there is no method {self.method!r}; choose one of {', '.join(METHODS)}")
        if self.rounding not in ROUNDINGS:
            raise UsageError(f"there is no rounding {self.rounding!r}; choose one of {', '.join(ROUNDINGS)}")
        if self.max_error is not None and not 0 < self.max_error < math.inf:
            raise UsageError(f"the largest error is {self.max_error}; give a positive number, such as 0.01")


@dataclass(frozen=True)
class Quantized:
    """What became of a network.

    Attributes:
        int8: number of layers that compute in int8.
        floating: names of the layers that do not, in topological order.
        kept: nodes that were to stay in float32, in topological order.
        error: relative error of the outputs on calibration examples (`OutputError`); None if they are integers.
        sensitivity: the error that each layer causes, the largest first; empty if it was not needed.
        equalized: number of pairs of layers whose ranges were equalised.
        corrected: number of layers whose biases were corrected.
        full_range_error: `error` if the weights were not of reduced range; None unless they are.
        rounded: layers whose weights could be rounded adaptively, in the order of the network.
    """

    int8: int
    floating: tuple[str, ...]
    kept: tuple[str, ...]
    error: float | None
    sensitivity: tuple[LayerError, ...]
    equalized: int
    corrected: int
    full_range_error: float | None = None
    rounded: tuple[RoundedLayer, ...] = ()

    @property
    def others(self) -> int:
        """Number of layers that do not compute in int8."""
        return len(self.floating)

    def __str__(self) -> str:
        """One line, such as "23 layers in int8, 4 in float32; output error 0.0123 (38.2 dB)"."""
        parts = [f"{counted(self.int8, 'layer')} in int8, {self.others} in float32"]
        parts += [f"pairs equalised: {self.equalized}"] if self.equalized else []
        parts += [f"biases corrected: {self.corrected}"] if self.corrected else []
        if self.rounded:
            changed = sum(layer.changed > 0 for layer in self.rounded)
            parts.append(f"{changed} of {counted(len(self.rounded), 'layer')} rounded adaptively")
        if self.error is not None:
            parts.append(f"output error {_error_text(self.error)}")
        if self.full_range_error is not None:
            parts.append(f"with weights of the full range {_error_text(self.full_range_error)}")
        return "; ".join(parts)


def _error_text(error: float) -> str:
    return f"{error:.3g} ({signal_to_noise(error):.1f} dB)"


def quantize(
    model: ir.Model,
    feeds: Iterable[Feeds],
    path: str | Path,
    options: QuantizationOptions | None = None,
    progress: Progress = silent,
) -> Quantized:
    """Writes a network in int8 as an ONNX file: weights with a scale per channel, activations with one per tensor.

    Args:
        model: float32, not fused, with static shapes.
        feeds: inputs by name, from which the ranges of the activations are learned; one run each.
        path: of the file, which is there complete or not at all.
        options: how; None: the defaults.
        progress: called for every run of the calibration and every layer whose sensitivity is measured.

    Raises:
        UsageError: there are no feeds, one does not fit, or a layer that is to stay in float32 does not exist.
        ModelError: the network is quantised already, computes NaN or infinite numbers, or ONNX Runtime cannot quantise it.
        FileError: the file cannot be written.
    """
    _refuse_quantised(model)
    options = options or QuantizationOptions()
    examples = checked_feeds(feeds, model)
    with TemporaryDirectory(prefix="nnstretch-quantize-") as folder:
        work = _Workspace(model, examples, options, Path(folder), progress)
        kept, sensitivity = _kept(work, options, progress)
        full_range_error = None
        if options.reduce_range and work.error.is_defined:
            full_range_error = work.error.of(work.int8(kept, full_range=True))
        file = work.int8(kept)
        error = work.error.of(file) if work.error.is_defined else None
        made = load(file)
        made.metadata_props.update(model.metadata_props)
        carry_placement(work.network, made)
        save(made, path)
    int8, floating = _layers(made)
    names = [str(node.name) for node in work.network.graph]
    stay = tuple(name for name in names if name in kept)
    return Quantized(
        int8, floating, stay, error, tuple(sensitivity), work.equalized, work.corrected, full_range_error, work.rounded
    )


@dataclass(frozen=True)
class Calibrated:
    """What a quantisation begins with.

    Attributes:
        network: in float32, folded, and equalised if that is asked for; nodes that stay in float32 have weights of their own.
        ranges: of its activations.
        kept: nodes that stay in float32, in topological order.
        example: inputs of one run.
    """

    network: ir.Model
    ranges: Mapping[str, Range]
    kept: tuple[str, ...]
    example: Feeds


def calibrate(
    model: ir.Model, feeds: Iterable[Feeds], options: QuantizationOptions, progress: Progress = silent
) -> Calibrated:
    """Folds a network, learns the ranges of its activations and chooses the layers that stay in float32.

    Arguments and errors are those of `quantize`.
    """
    _refuse_quantised(model)
    examples = checked_feeds(feeds, model)
    with TemporaryDirectory(prefix="nnstretch-quantize-") as folder:
        work = _Workspace(model, examples, options, Path(folder), progress)
        kept, _ = _kept(work, options, progress)
    own_weights(work.network, kept)
    work.network.metadata_props.update(model.metadata_props)
    names = [str(node.name) for node in work.network.graph]
    return Calibrated(work.network, work.ranges, tuple(name for name in names if name in kept), examples[0])


def is_trained(model: ir.Model) -> bool:
    """Whether the scales of a graph come from quantisation-aware training."""
    return TRAINED_KEY in model.metadata_props


def write_trained(model: ir.Model, path: str | Path) -> Quantized:
    """Writes a network whose scales come from quantisation-aware training.

    Args:
        model: with QuantizeLinear and DequantizeLinear nodes, and the metadata `TRAINED_KEY`.
        path: of the file, which is there complete or not at all.

    Raises:
        FileError: the file cannot be written.
    """
    made = model.clone()
    del made.metadata_props[TRAINED_KEY]
    save(made, path)
    int8, floating = _layers(made)
    return Quantized(int8, floating, (), None, (), 0, 0)


def _refuse_quantised(model: ir.Model) -> None:
    if any(node.op_type == "QuantizeLinear" for node in model.graph.all_nodes()):
        raise ModelError("the model is quantised already; give the one in float32")


class _Workspace:
    """Makes quantised files of one network.

    Args:
        model: the network as it is given.
        feeds: checked examples.
        options: how it is quantised.
        folder: for temporary files.
        progress: called for every run of the calibration.

    Attributes:
        network: folded, and equalised if that is asked for.
        ranges: of its activations.
        error: compares files with the network in float32.
        equalized: number of pairs of layers whose ranges were equalised.
        corrected: number of layers whose biases were corrected in the last file.
        rounded: layers of the last file whose weights were rounded adaptively.
    """

    def __init__(
        self,
        model: ir.Model,
        feeds: Sequence[dict[str, np.ndarray]],
        options: QuantizationOptions,
        folder: Path,
        progress: Progress,
    ) -> None:
        self._folder, self._feeds, self._options, self._progress = folder, feeds, options, progress
        self.network = folded(model, folder)
        self.equalized = equalize(self.network) if options.equalize else 0
        self.corrected = 0
        self.rounded: tuple[RoundedLayer, ...] = ()
        self._roundings: dict[
            tuple[frozenset[str], bool], Rounding
        ] = {}  # by what stays in float32, and the full range
        self._ranges = folder / "ranges.json"
        activations = Activations(self.network, feeds, folder, progress)
        self.ranges = activation_ranges(activations, options.method)
        write_ranges(self.ranges, self._ranges)
        self._file = self._saved(self.network, "network")
        self.error = OutputError(self._file, feeds)

    def int8(self, kept: Sequence[str], *, full_range: bool = False) -> Path:
        """A file in which these nodes, and only these, stay in float32; with `full_range` weights are not of reduced range."""
        network = self._with_own_weights(kept)
        file = self._written(self._saved(network, "kept"), keep=kept, full_range=full_range)
        rounding = Rounding((), {})
        if self._options.rounding == "adaptive":
            key = frozenset(kept), full_range
            if key not in self._roundings:  # takes longest, and a search of layers to keep ends with one of its files
                self._roundings[key] = round_adaptively(network, file, self._feeds, self._progress)
            rounding = self._roundings[key]
            rounding.write(file)
        if self._options.bias_correction:
            self.corrected = correct_biases(network, file, self._feeds, self._folder)
            file = self._written(self._saved(network, "kept"), keep=kept, full_range=full_range)
            rounding.write(file)
        if not full_range:
            self.rounded = rounding.layers
        return file

    def nearest(self, kept: Sequence[str]) -> Path:
        """A file with the same nodes as `int8` makes, the nearest integers and uncorrected biases."""
        return self._written(self._saved(self._with_own_weights(kept), "kept"), keep=kept)

    def only(self, nodes: Sequence[str]) -> Path:
        """A file in which only these nodes are quantised."""
        return self._written(self._file, only=nodes)

    def _with_own_weights(self, kept: Sequence[str]) -> ir.Model:
        """A copy of the network in which these nodes share weights with no others."""
        network = self.network.clone()
        own_weights(network, kept)
        return network

    def _saved(self, network: ir.Model, name: str) -> Path:
        file = self._folder / f"{name}.onnx"
        save(network, file)
        return file

    def _written(
        self, network: Path, *, keep: Sequence[str] = (), only: Sequence[str] = (), full_range: bool = False
    ) -> Path:
        file = self._folder / "int8.onnx"
        reduce_range = self._options.reduce_range and not full_range
        write_int8(network, self._ranges, file, keep=keep, only=only, reduce_range=reduce_range)
        return file


def _kept(work: _Workspace, options: QuantizationOptions, progress: Progress) -> tuple[list[str], list[LayerError]]:
    """Nodes that stay in float32, and the sensitivities of layers, if they were needed for that or asked for."""
    named = list(options.keep_float.named(work.network))
    worst = options.keep_float.worst
    if not (options.sensitivity or worst or options.max_error):
        return named, []
    groups = layer_groups(work.network, work.nearest(named), named)
    errors = layer_errors(work.network, groups, work.only, work.error, progress)
    names = [layer.name for layer in errors]

    def with_nodes(layers: Sequence[str]) -> list[str]:
        return [*named, *(node for layer in layers for node in groups[layer])]

    if options.max_error is None:
        return with_nodes(names[:worst]), errors
    rest = fewest_kept(
        names[worst:],
        lambda layers: work.error.of(work.int8(with_nodes([*names[:worst], *layers]))),
        options.max_error,
    )
    return with_nodes([*names[:worst], *rest]), errors


def _layers(model: ir.Model) -> tuple[int, tuple[str, ...]]:
    """The number of layers in int8, and the names of the others."""
    from nnstretch.graph.layers import layers
    from nnstretch.passes import optimize

    found = [n.layer for n in layers(optimize(model)) if n.layer.op not in ("Quantize", "Dequantize")]
    return sum(layer.is_int8 for layer in found), tuple(layer.name for layer in found if not layer.is_int8)
