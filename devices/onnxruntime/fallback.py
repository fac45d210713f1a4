"""A model that ONNX Runtime runs inside a plan."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nnstretch.devices.onnxruntime.refusals import first_line, refusals
from nnstretch.errors import DeviceError, MissingExtraError, ModelError


class FallbackModel:
    """One call of the fallback engine: all of a run of layers, on the CPU."""

    def __init__(self, model: bytes, threads: int) -> None:
        """Loads a serialised ONNX model.

        Raises:
            MissingExtraError: ONNX Runtime is not installed.
            ModelError: ONNX Runtime refuses the model, as it does with operators that it does not know.
        """
        try:
            import onnxruntime
        except ImportError as error:
            raise MissingExtraError(
                "some layers have no native routine and need the fallback; install it with `pip install onnxruntime`"
            ) from error
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except refusals() as error:
            raise ModelError(f"ONNX Runtime cannot run a layer without native routine: {first_line(error)}") from error
        self._inputs = [i.name for i in self._session.get_inputs()]

    def run(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """Computes `writes` from `reads`, arrays of the model's types and shapes in its order.

        Raises:
            DeviceError: ONNX Runtime failed.
        """
        try:
            results = self._session.run(None, dict(zip(self._inputs, reads, strict=True)))
        except refusals() as error:
            raise DeviceError(f"ONNX Runtime failed: {first_line(error)}") from error
        for target, result in zip(writes, results, strict=True):
            np.copyto(target, result)
