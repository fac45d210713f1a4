"""ONNX Runtime, and ONNX Runtime as a processor."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.external.engine import ExternalEngine, ExternalModel, ExternalRoutine
from nnstretch.devices.external.onnxruntime.model import OnnxRuntimeModel, load_onnxruntime
from nnstretch.devices.external.onnxruntime.routine import OnnxRuntimeHandThrough, OnnxRuntimeRoutine
from nnstretch.devices.external.processor import EXTERNAL_DTYPES, ExternalProcessor
from nnstretch.graph.layer import TensorType


class OnnxRuntime(ExternalEngine):
    """The engine; its processors and models have no argument."""

    name = "ort"
    title = "ONNX Runtime"

    def release(self) -> str:
        return str(load_onnxruntime().__version__)

    def routine(self) -> ExternalRoutine:
        return OnnxRuntimeRoutine()

    def processor(self, spec: ProcessorSpec) -> OnnxRuntimeProcessor:
        return OnnxRuntimeProcessor(spec)

    def load(
        self, content: bytes, threads: int, reads: Sequence[TensorType], writes: Sequence[TensorType], argument: str
    ) -> ExternalModel:
        return OnnxRuntimeModel(content, threads, reads, writes)


ENGINE = OnnxRuntime()


class OnnxRuntimeProcessor(ExternalProcessor):
    """A session for every call, with a thread per core."""

    def __init__(self, spec: ProcessorSpec) -> None:
        """The processor that `spec` names.

        Raises:
            MissingExtraError: ONNX Runtime is not installed.
            DeviceError: it does not work here.
        """
        routines = [OnnxRuntimeRoutine(alone=True, dtype=dtype) for dtype in EXTERNAL_DTYPES]
        super().__init__(spec, ENGINE, routines, OnnxRuntimeHandThrough())
