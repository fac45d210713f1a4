"""TFLite files, whose outputs are compared with those of the graph before they are written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from nnstretch.errors import ModelError
from nnstretch.exporters.options import ExportOptions
from nnstretch.support.settings import atomic_write

_LIMIT = 1e-3
"""Largest relative error of a float32 file."""


def save_tflite(graph: ir.Model, path: Path, options: ExportOptions) -> float | None:
    """Writes a graph as a TFLite file with the graph's names and metadata; returns the error if outputs were compared.

    Raises:
        ModelError: a layer has no counterpart in TFLite, or LiteRT computes other outputs.
        FileError: the place cannot be written.
        MissingExtraError: LiteRT is not installed.
    """
    from nnstretch.devices.external.litert.writer import write_tflite

    content = write_tflite(
        graph,
        path.stem,
        channels_last=options.channels_last,
        float16_weights=options.float16_weights,
        metadata=graph.metadata_props,
    )
    error = _compared(graph, content, options) if options.check else None
    with atomic_write(path) as file:
        file.write(content)
    return error


def _compared(graph: ir.Model, content: bytes, options: ExportOptions) -> float:
    """The largest error of LiteRT's outputs for one random input.

    Raises:
        ModelError: LiteRT rejects the file, or the file is float32 and the error exceeds the limit.
    """
    from nnstretch.bench.comparison.subject import random_feeds, reference_outputs
    from nnstretch.graph.reference import largest_error

    feeds = random_feeds(graph, 0)
    # Optimised, ONNX Runtime rounds elsewhere where int8 and float32 layers are mixed.
    expected = reference_outputs(graph, feeds, optimised=False)
    found = run_tflite(content, list(feeds.values()), channels_last=options.channels_last)
    error = largest_error(dict(zip(expected, found, strict=True)), expected)
    quantised = any(node.op_type == "QuantizeLinear" for node in graph.graph)
    if error > _LIMIT and not (options.float16_weights or quantised):
        raise ModelError(
            f"LiteRT's outputs differ from ONNX Runtime's by {error:.1e} of their range, more than {_LIMIT:g}; "
            "nothing was written"
        )
    return error


def run_tflite(content: bytes, feeds: list[np.ndarray], *, channels_last: bool) -> list[np.ndarray]:
    """Outputs of a TFLite file in LiteRT, for inputs in the file's order; images are N,C,H,W on both sides.

    Raises:
        ModelError: LiteRT rejects the file.
        MissingExtraError: LiteRT is not installed.
    """
    from nnstretch.devices.external.litert.engine import load_interpreter, open_interpreter

    def turned(value: np.ndarray, order: tuple[int, ...]) -> np.ndarray:
        return np.ascontiguousarray(value.transpose(order)) if channels_last and value.ndim == 4 else value

    try:
        opened = open_interpreter(load_interpreter(), model_content=content, num_threads=1)
        for about, value in zip(opened.get_input_details(), feeds, strict=True):
            opened.set_tensor(about["index"], turned(value, (0, 2, 3, 1)))
        opened.invoke()
    except (RuntimeError, ValueError) as error:
        raise ModelError(f"LiteRT cannot run the TFLite file: {str(error).splitlines()[0]}") from error
    return [turned(opened.get_tensor(about["index"]), (0, 3, 1, 2)) for about in opened.get_output_details()]
