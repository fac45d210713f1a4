"""LiteRT routines for layers and fusion groups."""

from __future__ import annotations

from importlib import metadata

import numpy as np

from nnstretch.devices.base.routine import Descriptor
from nnstretch.devices.external.engine import ExternalDtype, ExternalRoutine, release_number
from nnstretch.devices.external.litert.delegate import Delegate
from nnstretch.devices.external.litert.flatbuffer import FlatModel, load_schema
from nnstretch.devices.external.litert.model import load_interpreter
from nnstretch.devices.external.processor import IdentityRoutine
from nnstretch.graph.layer import Layer
from nnstretch.graph.quantization import QuantizationParameters

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
