"""ONNX Runtime as an external engine: a routine, the fallback for layers without a native routine, and a processor."""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from nnstretch.devices.base.routine import Descriptor
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.external.engine import (
    ExternalDtype,
    ExternalEngine,
    ExternalModel,
    ExternalRoutine,
    check_signature,
    release_number,
)
from nnstretch.devices.external.processor import EXTERNAL_DTYPES, ExternalProcessor, IdentityRoutine
from nnstretch.errors import DeviceError, MissingExtraError, ModelError, first_line
from nnstretch.graph.layer import FUSION_GROUP, Layer, TensorType
from nnstretch.support.onnxruntime_errors import refusals
from nnstretch.support.onnxruntime_levels import limit_optimisations

_NAMES = {"float32": "float", "float64": "double"}
"""Element types whose names differ between numpy and ONNX Runtime."""


def load_onnxruntime() -> Any:
    """The package.

    Raises:
        MissingExtraError: it is not installed.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError(
            "ONNX Runtime computes some layers of this plan; install it with `pip install onnxruntime`"
        ) from error
    return onnxruntime


class OnnxRuntimeModel(ExternalModel):
    """A session that reads and writes the plan's memory directly."""

    def __init__(self, content: bytes, threads: int, reads: Sequence[TensorType], writes: Sequence[TensorType]) -> None:
        """Loads a serialised ONNX model. Its threads spin during a run, not between runs.

        Raises:
            MissingExtraError: ONNX Runtime is not installed.
            ModelError: ONNX Runtime rejects the model, e.g. because of an unknown operator.
            PackageError: the model has other inputs or outputs.
        """
        onnxruntime = load_onnxruntime()
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.add_session_config_entry("session.force_spinning_stop", "1")
        # Without it, sums of int8 products saturate on CPUs without VNNI.
        options.add_session_config_entry("session.x64quantprecision", "1")
        limit_optimisations(options, content)
        self._failures = refusals()
        try:
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except self._failures:  # its optimisations may be what fails
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            try:
                self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
            except self._failures as error:
                raise ModelError(f"ONNX Runtime cannot run a part of the model: {first_line(error)}") from error
        check_signature("input", [_type(i) for i in self._session.get_inputs()], [_named(t) for t in reads])
        check_signature("output", [_type(o) for o in self._session.get_outputs()], [_named(t) for t in writes])
        self._addresses: list[int] = []
        self._binding: Any = None

    def run(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        try:
            self._bind(reads, writes)
            self._session.run_with_iobinding(self._binding)
        except self._failures as error:
            raise DeviceError(f"ONNX Runtime failed: {first_line(error)}") from error

    def _bind(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """Binds the arrays' memory unless it is bound already."""
        addresses = [array.ctypes.data for array in (*reads, *writes)]
        if addresses == self._addresses:
            return
        self._addresses, self._binding = addresses, self._session.io_binding()
        for about, array, address in zip(self._session.get_inputs(), reads, addresses, strict=False):
            self._binding.bind_input(about.name, "cpu", 0, array.dtype.type, array.shape, address)
        for about, array, address in zip(self._session.get_outputs(), writes, addresses[len(reads) :], strict=True):
            self._binding.bind_output(about.name, "cpu", 0, array.dtype.type, array.shape, address)


def _type(about: Any) -> TensorType:
    """A model's input or output, with ONNX Runtime's name of the element type."""
    return TensorType(tuple(about.shape), about.type)


def _named(tensor: TensorType) -> TensorType:
    return TensorType(tensor.shape, f"tensor({_NAMES.get(tensor.dtype, tensor.dtype)})")


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


class OnnxRuntime(ExternalEngine):
    """ONNX Runtime; its processors and models have no argument."""

    name = "ort"
    title = "ONNX Runtime"
    examples = MappingProxyType({"ort@2-3": "ONNX Runtime on cores 2 and 3"})

    def release(self) -> str:
        return str(load_onnxruntime().__version__)

    def routine(self) -> ExternalRoutine:
        return OnnxRuntimeRoutine()

    def processor(self, spec: ProcessorSpec) -> ExternalProcessor:
        """One session per call and one thread per core."""
        routines = [OnnxRuntimeRoutine(alone=True, dtype=dtype) for dtype in EXTERNAL_DTYPES]
        return ExternalProcessor(spec, self, routines, OnnxRuntimeIdentity())

    def load(
        self, content: bytes, threads: int, reads: Sequence[TensorType], writes: Sequence[TensorType], argument: str
    ) -> ExternalModel:
        return OnnxRuntimeModel(content, threads, reads, writes)


KIND = OnnxRuntime()
