"""ONNX Runtime routines for layers and fusion groups."""

from __future__ import annotations

from nnstretch.devices.base.routine import Descriptor
from nnstretch.devices.external.engine import ExternalDtype, ExternalRoutine, release_number
from nnstretch.devices.external.onnxruntime.model import load_onnxruntime
from nnstretch.devices.external.processor import IdentityRoutine
from nnstretch.errors import ModelError
from nnstretch.graph.layer import FUSION_GROUP, Layer

_LIMIT = (1 << 31) - (1 << 20)
"""Maximum bytes of weights in an ONNX file without external data."""

_ON_CPU = Descriptor("cpu", "float32", "onnxruntime")


class OnnxRuntimeRoutine(ExternalRoutine):
    """One session per call; ONNX Runtime optimises the layers of a fusion group together."""

    def __init__(self, *, alone: bool = False, dtype: ExternalDtype = "float32") -> None:
        """Creates a routine of a CPU, or with `alone` of an ONNX Runtime processor, for layers of `dtype`.

        Raises:
            MissingExtraError: ONNX Runtime is not installed.
        """
        super().__init__(release_number(load_onnxruntime().__version__), alone=alone, dtype=dtype)
        self.descriptor = Descriptor("ort", dtype, "cpu") if alone else _ON_CPU

    def supports(self, layer: Layer) -> bool:
        """Whether ONNX Runtime computes `layer`; also fusion groups of any ONNX operators with numeric inputs."""
        if layer.op != FUSION_GROUP:
            return super().supports(layer)
        reads = [layer.type_of(i) for i in layer.activations]
        numbers = bool(reads) and all(t.dtype == "float32" or t.quantization is not None for t in reads)
        mine = not self._alone or layer.is_int8 == (self._dtype == "int8")
        return mine and numbers and all(t.elements for t in layer.outputs)

    def model(self, layer: Layer) -> bytes:
        """The standard ONNX model of the layer."""
        from nnstretch.graph.expand import expand

        if layer.weight_bytes > _LIMIT:
            raise ModelError(f"{layer.weight_bytes >> 20} MB of weights do not fit an ONNX model, which holds 2 GB")
        content: bytes = expand(layer).SerializeToString()
        return content


class OnnxRuntimeIdentity(IdentityRoutine):
    """A session that copies its input."""

    descriptor = Descriptor("ort", "float32", "cpu")

    def model(self, layer: Layer) -> bytes:
        from onnx import helper

        from nnstretch.graph.onnx_writer import IR_VERSION, OPSET_VERSION

        kind = layer.type_of(0)
        element = helper.np_dtype_to_tensor_dtype(kind.element.storage)
        ends = [helper.make_tensor_value_info(name, element, kind.shape) for name in "xy"]
        graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "through", ends[:1], ends[1:])
        opset = helper.make_opsetid("", OPSET_VERSION)
        content: bytes = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION).SerializeToString()
        return content
