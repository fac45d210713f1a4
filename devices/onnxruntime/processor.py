"""ONNX Runtime as a processor."""

from __future__ import annotations

from nnstretch.devices.guest_processor import GUEST_DTYPES, GuestProcessor
from nnstretch.devices.onnxruntime.model import load_onnxruntime
from nnstretch.devices.onnxruntime.routine import OnnxRuntimeHandThrough, OnnxRuntimeRoutine
from nnstretch.devices.spec import ProcessorSpec


class OnnxRuntimeProcessor(GuestProcessor):
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
