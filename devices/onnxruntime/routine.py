"""Layers and runs of layers by ONNX Runtime."""

from __future__ import annotations

from nnstretch.devices.guest import GuestRoutine, release_number
from nnstretch.devices.onnxruntime.model import load_onnxruntime
from nnstretch.devices.routine import Descriptor
from nnstretch.errors import ModelError
from nnstretch.graph.layer import CHAIN, Layer

_LIMIT = (1 << 31) - (1 << 20)
"""Bytes of weights that an ONNX file without external data holds beside the rest."""


class OnnxRuntimeRoutine(GuestRoutine):
    """One session per call; ONNX Runtime optimises the layers of a run together."""

    descriptor = Descriptor("cpu", "float32", "onnxruntime")

    def __init__(self) -> None:
        """Raises a MissingExtraError if ONNX Runtime is not installed."""
        super().__init__(release_number(load_onnxruntime().__version__))

    def supports(self, layer: Layer) -> bool:
        """Beside what all guests do, runs with any ONNX operators in them, if all that they read at run time is float32."""
        if layer.op != CHAIN:
            return super().supports(layer)
        reads = [layer.type_of(i) for i in layer.activations]
        return bool(reads) and all(t.dtype == "float32" for t in reads) and all(t.elements for t in layer.outputs)

    def model(self, layer: Layer) -> bytes:
        """The standard ONNX model of the layer."""
        from nnstretch.graph.expand import expand

        if layer.weight_bytes > _LIMIT:
            raise ModelError(f"{layer.weight_bytes >> 20} MB of weights do not fit an ONNX model, which holds 2 GB")
        content: bytes = expand(layer).SerializeToString()
        return content
