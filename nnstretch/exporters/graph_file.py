"""A graph as a file in the format that the ending says."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from nnstretch.exporters.options import ONNX, ExportOptions
from nnstretch.exporters.tflite_file import save_tflite
from nnstretch.frontends.onnx_file import save


def save_graph(graph: ir.Model, path: Path, options: ExportOptions) -> float | None:
    """Writes a graph as an ONNX or TFLite file; returns the error of its outputs if they were compared.

    Raises:
        ModelError, FileError, MissingExtraError: as `save_tflite` and `frontends.onnx_file.save` say.
    """
    if path.suffix.lower() == ONNX:
        save(graph, path)
        return None
    return save_tflite(graph, path, options)
