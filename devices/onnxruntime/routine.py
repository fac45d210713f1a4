"""Layers and runs of layers by ONNX Runtime."""

from __future__ import annotations

from nnstretch.devices.guest import GuestRoutine, release_number
from nnstretch.devices.guest_processor import HandThrough
from nnstretch.devices.onnxruntime.model import load_onnxruntime
from nnstretch.devices.routine import Descriptor
from nnstretch.errors import ModelError
from nnstretch.graph.layer import CHAIN, Layer

_LIMIT = (1 << 31) - (1 << 20)
"""Bytes of weights that an ONNX file without external data holds beside the rest."""

_GUEST = Descriptor("cpu", "float32", "onnxruntime")
_PROCESSOR = Descriptor("ort", "float32", "cpu")


class OnnxRuntimeRoutine(GuestRoutine):
    """One session per call; ONNX Runtime optimises the layers of a run together."""

    def __init__(self, *, alone: bool = False) -> None:
        """A routine of a CPU, or all that a processor of its own has.

        Raises:
            MissingExtraError: ONNX Runtime is not installed.
        """
        super().__init__(release_number(load_onnxruntime().__version__), alone=alone)
        self.descriptor = _PROCESSOR if alone else _GUEST

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


class OnnxRuntimeHandThrough(HandThrough):
    """A session that copies; in which order ONNX Runtime keeps images inside is its own affair."""

    descriptor = _PROCESSOR

    def model(self, layer: Layer) -> bytes:
        from onnx import TensorProto, helper

        from nnstretch.graph.expand import IR_VERSION, OPSET_VERSION

        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, layer.type_of(0).shape) for name in "xy"]
        graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "through", ends[:1], ends[1:])
        opset = helper.make_opsetid("", OPSET_VERSION)
        content: bytes = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION).SerializeToString()
        return content
