"""`nnstretch.quantize`: a model in any form as an ONNX file in int8."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nnstretch.errors import UsageError
from nnstretch.frontends.resolve import load_any
from nnstretch.quantization import (
    Feeds,
    KeepFloat,
    QuantizationOptions,
    Quantized,
    RoundingName,
    examples_of,
    is_trained,
    write_trained,
)
from nnstretch.quantization import quantize as quantize_graph
from nnstretch.quantization.ranges import Method
from nnstretch.support.extras import extras_named
from nnstretch.support.progress import Progress, silent

if TYPE_CHECKING:
    from nnstretch.frontends.resolve import Model

EXAMPLES = 100
"""Default of `images`."""


@extras_named()
def quantize(
    model: Model,
    data: str | Path | Iterable[Feeds] | None,
    path: str | Path,
    example_input: Any = None,
    *,
    images: int = EXAMPLES,
    method: Method = "minmax",
    keep_float: Sequence[str] = ("auto",),
    max_error: float | None = None,
    sensitivity: bool = False,
    equalize: bool = False,
    bias_correction: bool = False,
    reduce_range: bool = False,
    rounding: RoundingName = "nearest",
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    batch: int | None = None,
    progress: Progress | None = None,
) -> Quantized:
    """Quantises a model to int8 by post-training calibration, and writes it as an ONNX file.

    Weights have one scale per output channel, activations one per tensor. QuantizeLinear and DequantizeLinear nodes stand
    around every layer, as ONNX Runtime and OpenVINO read them.

    Args:
        model: an ONNX or TFLite file, a zoo name, `module.py:factory`, an onnx_ir model, an `onnx.ModelProto` or its
            bytes, or a torch module (which needs `example_input`, unless it is a network of quantisation-aware training,
            whose scales the file gets).
        data: calibration data: a data set such as "folder:photos", a folder of images, a .npz file with an array for every
            input, or inputs by name, one mapping per run; None for a network of quantisation-aware training.
        path: the file, which ends in .onnx.
        example_input: a tensor, or a tuple of tensors, of the shapes to quantise for (torch modules).
        images: examples at most; those of a data set are drawn at random.
        method: how ranges of activations are chosen: minmax, percentile, entropy or mse.
        keep_float: layers that stay in float32, as `--keep-float` of `nnstretch quantize` names them.
        max_error: largest relative error of the outputs; the most sensitive layers stay in float32 until it is reached.
        sensitivity: measure the error that each layer causes.
        equalize: equalise ranges of channels across layers first.
        bias_correction: take the mean effect of rounded weights back from the biases.
        reduce_range: weights within ±64 instead of ±127, with which CPUs that have AVX2 but not VNNI compute faster.
        rounding: how weights become integers: nearest, or adaptive, which changes the outputs of every layer least.
        shapes: input name (or "" for the only input) -> shape, for models with dynamic shapes.
        batch: images per run, for models by name and ONNX files with a dynamic batch.
        progress: called with the steps done, their number and what is done.

    Returns:
        How many layers are int8, which stay in float32, and the relative error of the outputs on the examples.

    Raises:
        UsageError: an option is wrong, or the ending is not .onnx.
        ModelError: the model cannot be read or quantised, or the examples do not fit it.
        FileError: a file cannot be read or written.
    """
    if Path(path).suffix != ".onnx":
        raise UsageError(f"a quantised network is an ONNX file; write {Path(path).with_suffix('.onnx')}, not {path}")
    if images < 1:
        raise UsageError(f"images is {images}; calibrate with 1 or more")
    options = QuantizationOptions(
        method,
        KeepFloat.parse(keep_float),
        max_error,
        sensitivity,
        equalize=equalize,
        bias_correction=bias_correction,
        reduce_range=reduce_range,
        rounding=rounding,
    )
    graph = load_any(model, example_input, None if shapes is None else dict(shapes), batch)
    if is_trained(graph):
        if data is not None or options != QuantizationOptions():
            raise UsageError(
                "the network has the ranges of its training; give None for data, and no options that choose ranges"
            )
        return write_trained(graph, path)
    if data is None:
        raise UsageError("a network in float32 is quantised with calibration data; give data")
    feeds = examples_of(graph, str(data), images).feeds if isinstance(data, str | Path) else _checked(data)
    return quantize_graph(graph, feeds, path, options, progress or silent)


def _checked(data: Iterable[Feeds]) -> Iterable[Feeds]:
    """Data of a caller, which are looked at as far as that does not use them up.

    Raises:
        UsageError: they are no mappings.
    """
    known = data if isinstance(data, Sequence) else ()
    if isinstance(data, Mapping) or not all(isinstance(feeds, Mapping) for feeds in known):
        raise UsageError("data is a list of mappings, one per run: [{input name: array}, …]")
    return data
