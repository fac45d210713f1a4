"""ONNX Runtime as a processor."""

from __future__ import annotations

from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.external.onnxruntime.model import load_onnxruntime
from nnstretch.devices.external.onnxruntime.routine import OnnxRuntimeHandThrough, OnnxRuntimeRoutine
from nnstretch.devices.external.processor import GUEST_DTYPES, ExternalProcessor


class OnnxRuntimeProcessor(ExternalProcessor):
    """A session for every call, with a thread per core."""

    def __init__(self, spec: ProcessorSpec) -> None:
        """The processor that `spec` names.

        Raises:
            MissingExtraError: ONNX Runtime is not installed.
            DeviceError: it does not work here.
        """
        release: str = load_onnxruntime().__version__
        routines = [OnnxRuntimeRoutine(alone=True, dtype=dtype) for dtype in GUEST_DTYPES]
        super().__init__(spec, routines, OnnxRuntimeHandThrough(), release)
