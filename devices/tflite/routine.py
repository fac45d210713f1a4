"""Layers and runs of layers by LiteRT."""

from __future__ import annotations

from importlib import metadata

from nnstretch.devices.guest import GuestRoutine, release_number
from nnstretch.devices.routine import Descriptor
from nnstretch.devices.tflite.flatbuffer import load_schema
from nnstretch.devices.tflite.model import load_interpreter
from nnstretch.graph.layer import Layer


class LiteRtRoutine(GuestRoutine):
    """One interpreter per call. Images are turned to N,H,W,C and back inside its model, once per run of layers."""

    descriptor = Descriptor("cpu", "float32", "litert")

    def __init__(self) -> None:
        """Raises a MissingExtraError if LiteRT, or what writes its files, is not installed."""
        load_schema()
        package = load_interpreter().__name__.partition(".")[0]
        super().__init__(release_number(metadata.version(package.replace("_", "-"))))

    def model(self, layer: Layer) -> bytes:
        """The layer as a TFLite file whose inputs and outputs are plain."""
        import onnx_ir as ir

        from nnstretch.devices.tflite.writer import write_tflite
        from nnstretch.graph.expand import expand

        return write_tflite(ir.from_proto(expand(layer)), layer.name, channels_last=False)
