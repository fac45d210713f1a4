"""An ONNX Runtime model in a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnstretch.devices.external.engine import ExternalModel, check_signature
from nnstretch.devices.external.onnxruntime.errors import first_line, refusals
from nnstretch.errors import DeviceError, MissingExtraError, ModelError
from nnstretch.graph.layer import TensorType

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
        try:
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except refusals() as error:
            raise ModelError(f"ONNX Runtime cannot run a part of the model: {first_line(error)}") from error
        check_signature("input", [_type(i) for i in self._session.get_inputs()], [_named(t) for t in reads])
        check_signature("output", [_type(o) for o in self._session.get_outputs()], [_named(t) for t in writes])
        # run_with_iobinding raises RuntimeError.
        self._failures: tuple[type[Exception], ...] = (RuntimeError, *refusals())
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
