"""`nnstretch quantize`: a network in int8."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from nnstretch.api.options import CompileOptions
from nnstretch.cli.console import reporting
from nnstretch.cli.options import (
    DesignFile,
    Json,
    ModelToCompile,
    Weights,
    check_format,
    check_writable,
    option,
    with_options,
)
from nnstretch.errors import ModelError, UsageError
from nnstretch.support.progress import Progress
from nnstretch.training.data import usage

if TYPE_CHECKING:
    import onnx_ir as ir

    from nnstretch.quantization import Feeds
    from nnstretch.training.data.calibration import CalibrationImages

Calibration = Annotated[
    str, option("--data SET", f"Calibration data: {usage()}, or a .npz file with an array for every input.")
]


@with_options(CompileOptions)
def quantize_command(
    model: ModelToCompile,
    data: Calibration,
    output: Annotated[Path, option("--output -o FILE", "The ONNX file.")],
    images: Annotated[
        int, option("--images N", "Calibrate with N examples; those of a data set are drawn at random.", minimum=1)
    ] = 100,
    method: Annotated[str, option("--method NAME", "Calibration method: minmax, entropy or percentile.")] = "minmax",
    weights: Weights = None,
    design: DesignFile = None,
    *,
    options: CompileOptions,
    json: Json = False,
) -> None:
    """Quantise a network to int8 by post-training calibration, and write it as an ONNX file.

    Weights have one scale per output channel. The file has QuantizeLinear and DequantizeLinear nodes around every layer, which
    other engines also support; `nnstretch run FILE -p litert` computes it in int8.

    Example: nnstretch quantize resnet18 --weights resnet18.safetensors --data folder:photos -o resnet18-int8.onnx
    """
    with reporting(as_json=json) as report:
        from nnstretch.cli.sources import Source
        from nnstretch.quantization import METHODS, quantize

        if method not in METHODS:
            raise UsageError(f"there is no method {method!r}; choose one of {', '.join(METHODS)}")
        check_format(output, "a quantised network is", ".onnx")
        check_writable(output)
        graph = Source(model, options, weights, design).load()
        with report.progress("Quantising") as advance:
            feeds, calibration = _examples(graph, data, images)
            counts = quantize(graph, _counted(feeds, images, advance), output, method)  # type: ignore[arg-type]
        report.note(calibration.note if calibration else "")
        size = output.stat().st_size
        report.show(f"{output}: {counts.int8} layers in int8, {counts.others} in float32; {size / 1e6:.1f} MB")
        report.finish(
            {
                "model": model,
                "output": str(output),
                "method": method,
                "int8_layers": counts.int8,
                "other_layers": counts.others,
                "bytes": size,
                "unreadable": len(calibration.unreadable) if calibration else 0,
            }
        )


def _counted(feeds: Iterator[Feeds], total: int, advance: Progress) -> Iterator[Feeds]:
    for number, feed in enumerate(feeds):
        advance(number, total, "calibrating")
        yield feed


def _examples(graph: ir.Model, data: str, count: int) -> tuple[Iterator[Feeds], CalibrationImages | None]:
    """Batches of examples of `data`, of the graph's batch size, and the images that they are, if they are of a data set.

    Raises:
        ModelError: a data set of images, and the network does not read square images alone.
        NNStretchError: there are none, or they do not fit.
    """
    from nnstretch.quantization import read_feeds

    if data.endswith(".npz"):
        return read_feeds(data, graph, count), None
    shapes = {str(v.name): tuple(v.shape.numpy()) if v.shape is not None else () for v in graph.graph.inputs}
    name, shape = next(iter(shapes.items()))
    if len(shapes) != 1 or len(shape) != 4 or shape[2] != shape[3]:
        wanted = ", ".join(f"{n} {list(s)}" for n, s in shapes.items())
        raise ModelError(
            f"the model's inputs are {wanted}; calibrate with a .npz file, since images need one input of shape N,C,S,S"
        )
    from nnstretch.training.data import load_dataset
    from nnstretch.training.data.calibration import CalibrationImages
    from nnstretch.training.data.preprocessing import stated_preprocessing

    preprocessing = stated_preprocessing(graph.metadata_props, "the model")
    split = load_dataset(data, shape[2], shape[1], preprocessing=preprocessing).train
    calibration = CalibrationImages(split, count, shape[0])
    return ({name: images} for images in calibration), calibration
