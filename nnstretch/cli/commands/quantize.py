"""`nnstretch quantize`: a network in int8."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from nnstretch.api.options import CompileOptions
from nnstretch.cli.console import reporting
from nnstretch.cli.options import (
    DesignFile,
    ImageSizeOption,
    Json,
    ModelToCompile,
    Weights,
    check_distinct,
    check_format,
    check_writable,
    option,
    with_options,
)
from nnstretch.errors import UsageError
from nnstretch.report.tables.quantization import floating_text, rounding_table, sensitivity_table
from nnstretch.report.tables.text import size_text
from nnstretch.support.progress import Progress
from nnstretch.training.data import usage

if TYPE_CHECKING:
    import onnx_ir as ir

    from nnstretch.cli.console import Reporter
    from nnstretch.quantization import Examples, Feeds, QuantizationOptions, Quantized
    from nnstretch.training.data.preprocessing import Preprocessing

Calibration = Annotated[
    str | None,
    option(
        "--data SET",
        f"Calibration data: {usage()}, a folder of images without labels, or a .npz file with an array for every input. "
        "Weights from quantisation-aware training need none.",
    ),
]
MethodName = Annotated[
    str,
    option(
        "--method NAME",
        "How ranges of activations are chosen: minmax (all values), percentile (all but one in 100,000), entropy (least "
        "Kullback-Leibler divergence) or mse (least squared error).",
    ),
]
Kept = Annotated[
    list[str] | None,
    option(
        "--keep-float NAME",
        "Layers that stay in float32: a name, a path that holds layers, or a pattern with * and ?; may be given several times. "
        "'heads': the last layers before every output and all behind them; 'auto': those of detectors; 'auto:N': these and "
        "the N most sensitive layers; 'none': nothing but what is named.",
        shown="auto",
    ),
]
MaxError = Annotated[
    float | None,
    option(
        "--max-error E",
        "Keep the most sensitive layers in float32, as few as hold the relative error of the outputs within E.",
    ),
]
Sensitivity = Annotated[
    bool,
    option(
        "--sensitivity",
        "Show the error of the outputs that every layer causes: that of the network in which only this layer is quantised, on "
        "32 calibration examples at most, relative to the float32 outputs.",
    ),
]
Equalize = Annotated[
    bool, option("--equalize", "Equalise the ranges of channels across neighbouring layers before the calibration.")
]
BiasCorrection = Annotated[
    bool,
    option("--bias-correction", "Subtract the mean effect of rounded weights, on the examples, from the biases."),
]

ReduceRange = Annotated[
    bool,
    option(
        "--reduce-range",
        "Weights of seven bits, from -64 to 64: CPUs with AVX2 but without VNNI compute faster with them, and sums of ONNX "
        "Runtime and OpenVINO do not saturate there. The last line states the error with either range.",
    ),
]
RoundingOption = Annotated[
    str,
    option(
        "--rounding NAME",
        "How weights become integers: nearest, or adaptive: of the two integers beside each weight those that change the "
        "outputs of the layer least on 32 calibration examples at most. Shows the errors of the layers.",
    ),
]


@with_options(CompileOptions)
def quantize_command(
    model: ModelToCompile,
    output: Annotated[Path, option("--output -o FILE", "The ONNX file.")],
    data: Calibration = None,
    images: Annotated[
        int, option("--images N", "Calibrate with N examples; those of a data set are drawn at random.", minimum=1)
    ] = 100,
    method: MethodName = "minmax",
    keep_float: Kept = None,
    max_error: MaxError = None,
    sensitivity: Sensitivity = False,
    equalize: Equalize = False,
    bias_correction: BiasCorrection = False,
    reduce_range: ReduceRange = False,
    rounding: RoundingOption = "nearest",
    weights: Weights = None,
    design: DesignFile = None,
    image_size: ImageSizeOption = None,
    *,
    options: CompileOptions,
    json: Json = False,
) -> None:
    """Quantise a network to int8 by post-training calibration, and write it as an ONNX file.

    Weights have one scale per output channel. The file has QuantizeLinear and DequantizeLinear nodes around every layer, which
    other engines also support; `nnstretch run FILE -p litert` computes it in int8. Weights that `nnstretch train --recipe qat`
    wrote bring their ranges, and the file has exactly these.

    Example: nnstretch quantize resnet18 --weights resnet18.safetensors --data folder:photos -o resnet18-int8.onnx
    """
    with reporting(as_json=json) as report:
        from nnstretch.cli.models.sources import Source
        from nnstretch.quantization import KeepFloat, QuantizationOptions

        wanted = QuantizationOptions(
            method=method,  # type: ignore[arg-type]
            keep_float=KeepFloat.parse(keep_float or ()),
            max_error=max_error,
            sensitivity=sensitivity,
            equalize=equalize,
            bias_correction=bias_correction,
            reduce_range=reduce_range,
            rounding=rounding,  # type: ignore[arg-type]
        )
        check_format(output, "a quantised network is", ".onnx")
        check_distinct(output, model, weights, design)
        check_writable(output)
        source = Source(model, options, weights, design, image_size)
        made, examples = _written(source.load(), data, images, output, wanted, report)
        report.note(source.note)
        _show(report, made, examples, output, wanted)
        calibration = examples.images if examples else None
        report.finish(
            {
                "model": model,
                "output": str(output),
                "method": method,
                **_answer(made),
                "bytes": output.stat().st_size,
                "unreadable": len(calibration.unreadable) if calibration else 0,
                "preprocessing": _images_answer(examples),
            }
        )


def _show(
    report: Reporter, made: Quantized, examples: Examples | None, output: Path, wanted: QuantizationOptions
) -> None:
    """Shows what was written, with the tables that were asked for, and notes on the calibration and on this CPU."""
    calibration = examples.images if examples else None
    report.note(calibration.note if calibration else "")
    if wanted.sensitivity:
        report.show(sensitivity_table(made.sensitivity, made.floating))
    if made.rounded:
        report.show(rounding_table(made.rounded))
    if examples is not None and examples.preprocessing is not None:
        report.show(_images_text(examples.preprocessing, is_stated=examples.is_stated))
    if made.floating and made.int8:
        report.show(floating_text(made.floating))
    report.show(f"{output}: {made}; {size_text(output.stat().st_size)}")
    report.note(_range_note(made, is_reduced=wanted.reduce_range) if examples else "")
    if not made.int8:
        report.note("no layer is in int8; allow a larger error, or leave fewer layers out")


def _written(
    graph: ir.Model, data: str | None, images: int, output: Path, wanted: QuantizationOptions, report: Reporter
) -> tuple[Quantized, Examples | None]:
    """Writes the file: with the scales of the training if there was one, else after calibration.

    Raises:
        UsageError: there are no data and the network was not trained through quantisation, or the other way round.
    """
    from nnstretch.quantization import QuantizationOptions, examples_of, is_trained, quantize, write_trained

    if is_trained(graph):
        if data is not None or wanted != QuantizationOptions():
            raise UsageError(
                "the ranges of these weights come from quantisation-aware training; leave out --data and the options that "
                "choose ranges or layers"
            )
        return write_trained(graph, output), None
    if data is None:
        raise UsageError(
            "a network in float32 is quantised with calibration data; give --data SET, such as folder:photos"
        )
    with report.progress("Quantising") as advance:
        examples = examples_of(graph, data, images)
        return quantize(graph, _counted(examples.feeds, images, advance), output, wanted, advance), examples


def _range_note(made: Quantized, *, is_reduced: bool) -> str:
    """Whether this machine's CPU asks for the other range of weights; an empty text if not."""
    from nnstretch.devices.cpu.routines.int8.weighted import gains_by_narrow_weights
    from nnstretch.devices.engine.build.instruction_sets import local_features, local_isa

    gains = gains_by_narrow_weights(local_isa(), local_features())
    if not made.int8 or gains == is_reduced:
        return ""
    if gains:
        return "this CPU has AVX2 but no VNNI: weights of seven bits (--reduce-range) are computed faster"
    return "this CPU is as fast with weights of eight bits; --reduce-range is for CPUs with AVX2 but without VNNI"


def _images_text(preprocessing: Preprocessing, *, is_stated: bool) -> str:
    """How calibration images became inputs, in a line."""
    whence = (
        "as the model states" if is_stated else "assumed, since the model's metadata have no nnstretch.preprocessing"
    )
    return f"calibration images ({whence}): {preprocessing.text}"


def _images_answer(examples: Examples | None) -> dict[str, Any] | None:
    """How calibration images became inputs, for the JSON answer; None without images."""
    if examples is None or examples.preprocessing is None:
        return None
    order = examples.preprocessing.channel_order
    return {**examples.preprocessing.to_object(), "channel_order": order, "stated": examples.is_stated}


def _answer(made: Quantized) -> dict[str, Any]:
    """What became of a network, for the JSON answer."""
    return {
        "int8_layers": made.int8,
        "other_layers": len(made.floating),
        "float_layers": made.floating,
        "kept_float": made.kept,
        "equalized_pairs": made.equalized,
        "corrected_layers": made.corrected,
        **_errors(made.error),
        "full_range_error": made.full_range_error,
        "rounding": [
            {
                "layer": layer.name,
                "operator": layer.operator,
                "nearest_error": layer.nearest,
                "error": layer.error,
                "changed_weights": layer.changed,
            }
            for layer in made.rounded
        ],
        "sensitivity": [
            {"layer": layer.name, "operator": layer.operator, **_errors(layer.error)} for layer in made.sensitivity
        ],
    }


def _errors(error: float | None) -> dict[str, float | None]:
    """A relative error, and the signal-to-noise ratio that it is."""
    from nnstretch.quantization import signal_to_noise

    return {"error": error, "snr_db": None if error is None else signal_to_noise(error)}


def _counted(feeds: Iterator[Feeds], total: int, advance: Progress) -> Iterator[Feeds]:
    for number, feed in enumerate(feeds):
        advance(number, total, "reading examples")
        yield feed
