"""A LiteRT model in a plan, with or without a delegate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nnstretch.devices.external.engine import ExternalModel, check_signature
from nnstretch.devices.external.litert.delegate import Delegate
from nnstretch.devices.external.litert.flatbuffer import IDENTIFIER
from nnstretch.errors import DeviceError, MissingExtraError, ModelError, PackageError
from nnstretch.graph.layer import TensorType


def load_interpreter() -> Any:
    """The interpreter module of LiteRT, or of the older tflite_runtime if only that is installed (32-bit ARM).

    Raises:
        MissingExtraError: neither is installed.
    """
    try:
        from ai_edge_litert import interpreter
    except ImportError:
        try:
            from tflite_runtime import interpreter
        except ImportError as error:
            raise MissingExtraError(
                "LiteRT computes some layers of this plan; install it with `pip install nnstretch[litert]`"
            ) from error
    return interpreter


class LiteRtModel(ExternalModel):
    """An interpreter. Inputs and outputs are copied, because it keeps tensors in its own memory."""

    def __init__(
        self,
        content: bytes,
        threads: int,
        reads: Sequence[TensorType],
        writes: Sequence[TensorType],
        delegate: Delegate | None = None,
    ) -> None:
        """Loads a TFLite file and runs it once to start its threads.

        Raises:
            MissingExtraError: LiteRT is not installed.
            ModelError: LiteRT or the delegate rejects the model.
            DeviceError: the delegate cannot be loaded.
            PackageError: `content` is not a TFLite file, or has other inputs or outputs.
        """
        if content[4:8] != IDENTIFIER:
            raise PackageError("a model in the plan is no TFLite file; compile it again")
        self._by = "LiteRT" if delegate is None or delegate == Delegate() else f"LiteRT with {delegate}"
        self._interpreter: Any = None
        package = load_interpreter()
        arguments = (delegate or Delegate()).arguments(package)
        try:
            self._interpreter = package.Interpreter(model_content=content, num_threads=threads, **arguments)
            self._interpreter.allocate_tensors()
            inputs, outputs = self._interpreter.get_input_details(), self._interpreter.get_output_details()
            check_signature("input", list(map(_type, inputs)), reads)
            check_signature("output", list(map(_type, outputs)), writes)
            self._interpreter.invoke()
        except (RuntimeError, ValueError) as error:
            raise ModelError(f"{self._by} cannot run a part of the model: {_line(error)}") from error
        self._inputs = [int(about["index"]) for about in inputs]
        self._outputs = [int(about["index"]) for about in outputs]

    def run(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        try:
            for index, value in zip(self._inputs, reads, strict=True):
                self._interpreter.set_tensor(index, value)
            self._interpreter.invoke()
            for index, target in zip(self._outputs, writes, strict=True):
                np.copyto(target, self._interpreter.tensor(index)())
        except (RuntimeError, ValueError) as error:
            raise DeviceError(f"{self._by} failed: {_line(error)}") from error


def _type(about: Any) -> TensorType:
    return TensorType(tuple(int(d) for d in about["shape"]), np.dtype(about["dtype"]).name)


def _line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
