"""LiteRT as an external engine: its models, routines and processors, with or without a delegate."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import metadata
from types import MappingProxyType
from typing import Any

import numpy as np

from nnstretch.devices.base.routine import Descriptor
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.devices.external.engine import (
    ExternalDtype,
    ExternalEngine,
    ExternalModel,
    ExternalRoutine,
    check_signature,
    release_number,
)
from nnstretch.devices.external.litert.delegate import XNNPACK, Delegate, parse_delegate
from nnstretch.devices.external.litert.flatbuffer import IDENTIFIER, FlatModel, load_schema
from nnstretch.devices.external.processor import EXTERNAL_DTYPES, ExternalProcessor, IdentityRoutine
from nnstretch.errors import DeviceError, MissingExtraError, ModelError, PackageError
from nnstretch.graph.dtypes import QuantizationParameters
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.support.library_output import dropped_stderr


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
                "LiteRT computes some layers of this plan; install it with `pip install 'nnstretch[litert]'`"
            ) from error
    return interpreter


def open_interpreter(package: Any, **arguments: Any) -> Any:
    """An interpreter whose tensors are allocated. LiteRT logs that it has delegates, whether or not anybody asks.

    Args:
        package: of `load_interpreter`.
        arguments: of its `Interpreter`.

    Raises:
        RuntimeError, ValueError: LiteRT rejects the model.
    """
    with dropped_stderr():
        made = package.Interpreter(**arguments)
        made.allocate_tensors()
    return made


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
            self._interpreter = open_interpreter(package, model_content=content, num_threads=threads, **arguments)
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


_ON_CPU = Descriptor("cpu", "float32", "litert")


class LiteRtRoutine(ExternalRoutine):
    """One interpreter per call. The model transposes images to N,H,W,C and back, once per fusion group."""

    def __init__(self, delegate: Delegate | None = None, dtype: ExternalDtype = "float32") -> None:
        """Creates a routine of a CPU, or with `delegate` of a LiteRT processor, for layers of `dtype`.

        Raises:
            MissingExtraError: LiteRT, or the package that writes its files, is not installed.
        """
        load_schema()
        super().__init__(release_number(litert_release()[1]), alone=delegate is not None, dtype=dtype)
        self.descriptor = _ON_CPU if delegate is None else delegate_descriptor(delegate, dtype)

    def supports(self, layer: Layer) -> bool:
        """Whether LiteRT computes `layer`; none that TFLite files cannot express."""
        return super().supports(layer) and self.can_express(layer)

    def model(self, layer: Layer) -> bytes:
        """The layer as a TFLite file with plain inputs and outputs."""
        import onnx_ir as ir

        from nnstretch.devices.external.litert.writer import write_tflite
        from nnstretch.graph.expand import expand

        return write_tflite(ir.from_proto(expand(layer)), layer.name, channels_last=False)


class LiteRtIdentity(IdentityRoutine):
    """Transposes an image to N,H,W,C and back, as every call does with its inputs and outputs."""

    def __init__(self, delegate: Delegate) -> None:
        self.descriptor = delegate_descriptor(delegate, "float32")

    def model(self, layer: Layer) -> bytes:
        shape = layer.type_of(0).shape
        file = FlatModel(layer.name)
        there = file.tensor(shape, "x", None if layer.type_of(0).dtype == "float32" else QuantizationParameters(1.0))
        result = file.like(there, "y")
        if len(shape) == 4:
            last = file.like(there, "last", [shape[axis] for axis in _TO_LAST])
            for source, order, made in ((there, _TO_LAST, last), (last, _TO_PLAIN, result)):
                axes = file.constant(np.array(order, np.int32), f"order:{made}")
                file.operator("TRANSPOSE", [source, axes], [made], table="TransposeOptions")
        else:
            wanted = file.constant(np.array(shape, np.int32), "shape")
            file.operator("RESHAPE", [there, wanted], [result], {"newShape": list(shape)}, table="ReshapeOptions")
        return file.finish([there], [result])


_TO_LAST, _TO_PLAIN = (0, 2, 3, 1), (0, 3, 1, 2)


def delegate_descriptor(delegate: Delegate, dtype: ExternalDtype) -> Descriptor:
    """Descriptor of the routines of LiteRT with a delegate."""
    return Descriptor("litert", dtype, str(delegate))


def litert_release() -> tuple[str, str]:
    """Name and version of the interpreter's package.

    Raises:
        MissingExtraError: it is not installed.
    """
    package = load_interpreter().__name__.partition(".")[0].replace("_", "-")
    return package, metadata.version(package)


class LiteRt(ExternalEngine):
    """LiteRT; the argument of its processors and models is a delegate, empty for XNNPACK."""

    name = "litert"
    title = "LiteRT"
    examples = MappingProxyType(
        {
            "litert@1": "LiteRT with XNNPACK on core 1 (`tflite` is accepted for `litert`)",
            "litert:gpu@1": "LiteRT with the GPU delegate, if one is found; `litert:builtin` uses no delegate",
            "litert:npu@1": "in standalone models: LiteRT with its NPU accelerator",
            "litert:/usr/lib/libnpu.so?speed=2@0": "LiteRT with a delegate library and its options",
        }
    )

    def release(self) -> str:
        return litert_release()[1]

    def canonical_argument(self, argument: str) -> str:
        """The delegate with an absolute path; empty for XNNPACK."""
        delegate = str(parse_delegate(argument or XNNPACK))
        return "" if delegate == XNNPACK else delegate

    def library(self, argument: str) -> str:
        """The path of a delegate's library; empty for delegates with names of their own."""
        library = parse_delegate(argument or XNNPACK).library or ""
        return library if "/" in library else ""

    def routine(self) -> ExternalRoutine:
        return LiteRtRoutine()

    def processor(self, spec: ProcessorSpec) -> ExternalProcessor:
        """One interpreter per call and one thread per core; a delegate may compute layers on another device."""
        return self._processor(spec)

    def foreign_processor(self, spec: ProcessorSpec, isa: Isa) -> ExternalProcessor:
        """LiteRT of a standalone model, which opens it on the other machine."""
        return self._processor(spec, isa)

    def _processor(self, spec: ProcessorSpec, isa: Isa | None = None) -> ExternalProcessor:
        delegate = parse_delegate(spec.argument or XNNPACK)
        routines = [LiteRtRoutine(delegate, dtype) for dtype in EXTERNAL_DTYPES]
        return ExternalProcessor(spec, self, routines, LiteRtIdentity(delegate), delegate.identity, isa)

    def load(
        self, content: bytes, threads: int, reads: Sequence[TensorType], writes: Sequence[TensorType], argument: str
    ) -> ExternalModel:
        return LiteRtModel(content, threads, reads, writes, parse_delegate(argument or XNNPACK))


KIND = LiteRt()
