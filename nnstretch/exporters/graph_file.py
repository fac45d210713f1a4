"""A graph as a file in the format that the ending says."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from nnstretch.errors import ModelError
from nnstretch.exporters.options import ONNX, ExportOptions
from nnstretch.exporters.tflite_file import save_tflite
from nnstretch.frontends.onnx_file import save

_LARGEST_FILE = (1 << 31) - 1
"""Bytes of a TFLite file, whose sizes have 31 bits."""


def save_graph(graph: ir.Model, path: Path, options: ExportOptions) -> float | None:
    """Writes a graph as an ONNX or TFLite file; returns the error of its outputs if they were compared.

    Raises:
        ModelError: the weights exceed the 2 GB of a TFLite file; or as `save` and `save_tflite` say.
        FileError, MissingExtraError: as `save` and `save_tflite` say.
    """
    if path.suffix.lower() == ONNX:
        save(graph, path)
        return None
    _check_size(graph, options)
    return save_tflite(graph, path, options)


def _check_size(graph: ir.Model, options: ExportOptions) -> None:
    """Refuses weights that no TFLite file can hold before they are copied.

    Raises:
        ModelError: there are such.
    """
    values = [value.const_value for value in graph.graph.initializers.values() if value.const_value is not None]
    size = sum(
        value.nbytes // 2 if options.float16_weights and value.dtype == ir.DataType.FLOAT else value.nbytes
        for value in values
    )
    if size > _LARGEST_FILE:
        raise ModelError(
            f"{size / 1e9:.1f} GB of weights do not fit a TFLite file, which holds 2 GB; use a smaller model, or ONNX"
        )
