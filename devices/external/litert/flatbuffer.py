"""Builder of TFLite files: collects tensors, operators and weights and serialises them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from nnstretch.errors import MissingExtraError, ModelError
from nnstretch.graph.dtypes import QuantizationParameters

IDENTIFIER = b"TFL3"
"""Bytes 4 to 7 of every TFLite file."""

_SCHEMA_VERSION = 3
_ALIGNMENT = 16  # bytes, guaranteed for weights by the format
_ROOM = 1 << 20  # bytes reserved for all but the weights, so that the builder does not grow repeatedly
_SIGNATURE = "serving_default"  # the name that converters give
_LIMIT = (1 << 31) - 1  # bytes; offsets of a flatbuffer have 31 bits
_INT8_VERSIONS = {"RESHAPE": 1, "QUANTIZE": 1, "CONV_2D": 3, "DEPTHWISE_CONV_2D": 3, "FULLY_CONNECTED": 4}
_INT8_VERSION = 2
"""Lowest version with int8, of the operators listed above and of all others."""
_HALF_VERSION = 3
"""Lowest version of DEQUANTIZE with float16."""
_LARGEST_HALF = float(np.finfo(np.float16).max)
_DENSE_PER_CHANNEL = 12
"""Lowest version of FULLY_CONNECTED with a scale per output."""


def load_schema() -> Any:
    """The module of the TFLite schema's classes.

    Raises:
        MissingExtraError: its package is not installed.
    """
    try:
        from ai_edge_litert import schema_py_generated
    except ImportError as error:
        raise MissingExtraError(
            "TFLite files need the package ai-edge-litert; install it with pip install 'nnstretch[litert]'"
        ) from error
    return schema_py_generated


class FlatModel:
    """Collects tensors and operators of one sub-graph. Tensors are numbered.

    Args:
        name: name of the sub-graph and description of the file.
        halves: whether weights are stored as float16; LiteRT converts them to float32 when it loads the file.
    """

    def __init__(self, name: str, *, halves: bool = False) -> None:
        self.schema = load_schema()
        self._name, self._halves = name, halves
        self._buffers: list[Any] = [self.schema.BufferT()]  # number 0 is the empty one of all computed tensors
        self._tensors: list[Any] = []
        self._operators: list[Any] = []
        self._quantization: dict[int, QuantizationParameters] = {}
        self._codes: dict[tuple[int, int], int] = {}
        self._bytes = 0

    def tensor(self, shape: Sequence[int], name: str, quantization: QuantizationParameters | None = None) -> int:
        """Adds an input or computed tensor: int8 with quantization parameters, else float32."""
        if quantization is None:
            return self._add(shape, self.schema.TensorType.FLOAT32, name, 0)
        made = self._add(shape, self.schema.TensorType.INT8, name, 0)
        self._quantize(made, np.array([quantization.scale]), quantization.zero_point)
        self._quantization[made] = quantization
        return made

    def constant(
        self, value: np.ndarray, name: str, scales: np.ndarray | None = None, axis: int = 0, zero_point: int = 0
    ) -> int:
        """Adds a constant of float32, float16, int32, int8 or bool.

        Args:
            value: the values.
            name: display name.
            scales: quantization scales; one, or one per index along `axis`; None if not quantized.
            axis: axis of `scales`.
            zero_point: quantized value of 0.
        """
        types = self.schema.TensorType
        kinds = {
            "float32": types.FLOAT32,
            "float16": types.FLOAT16,
            "int32": types.INT32,
            "int8": types.INT8,
            "bool": types.BOOL,
        }
        made = self._add(value.shape, kinds[value.dtype.name], name, self._buffer(value.tobytes()))
        if scales is not None:
            self._quantize(made, scales, zero_point, axis)
        return made

    def weight(self, value: np.ndarray, name: str) -> int:
        """Adds a constant of float32, stored as float16 if the file's weights are and all its values are in range."""
        if not self._halves or not value.size or float(np.abs(value).max()) > _LARGEST_HALF:
            return self.constant(value, name)
        stored = self.constant(value.astype(np.float16), f"{name}:float16")
        made = self.tensor(value.shape, name)
        self.operator("DEQUANTIZE", [stored], [made], table="DequantizeOptions", version=_HALF_VERSION)
        return made

    def number(self, value: float, like: int) -> int:
        """Adds a scalar operand: quantized like tensor `like`, or float32 if that is float32."""
        quantization, name = self.quantization(like), f"scalar:{value:g}"
        if quantization is None:
            return self.constant(np.array(value, np.float32), name)
        return self.constant(
            quantization.quantize(value), name, np.array([quantization.scale]), zero_point=quantization.zero_point
        )

    def shape(self, tensor: int) -> tuple[int, ...]:
        """The shape of a tensor."""
        return tuple(self._tensors[tensor].shape)

    def quantization(self, tensor: int) -> QuantizationParameters | None:
        """Quantization parameters of an input or computed tensor; None for float32."""
        return self._quantization.get(tensor)

    def like(self, tensor: int, name: str, shape: Sequence[int] | None = None) -> int:
        """Adds a tensor with the type and quantization parameters of another, and its shape unless `shape` is given."""
        return self.tensor(self.shape(tensor) if shape is None else shape, name, self.quantization(tensor))

    def requantized(self, tensor: int, quantization: QuantizationParameters | None) -> int:
        """Converts a tensor to quantization parameters; returns it unchanged if it has them or is float32."""
        if self.quantization(tensor) in (None, quantization):
            return tensor
        made = self.tensor(self.shape(tensor), f"quantization:{tensor}", quantization)
        self.quantize(tensor, made)
        return made

    def quantize(self, source: int, result: int) -> None:
        """Quantizes float32, or requantizes int8, to the parameters of `result`."""
        self.operator("QUANTIZE", [source], [result], table="QuantizeOptions")

    def operator(
        self,
        name: str,
        inputs: Sequence[int],
        outputs: Sequence[int],
        options: Mapping[str, Any] | None = None,
        *,
        table: str = "",
        version: int = 1,
    ) -> None:
        """Appends an operator.

        Args:
            name: name in the schema's BuiltinOperator, such as CONV_2D.
            inputs: tensors; -1 for an absent optional one.
            outputs: tensors.
            options: fields of the operator's options.
            table: type of the options in the schema, such as Conv2DOptions.
            version: version of the operator.
        """
        if any(self._tensors[i].type == self.schema.TensorType.INT8 for i in (*inputs, *outputs) if i >= 0):
            version = max(version, self._int8_version(name, inputs))
        made = self.schema.OperatorT()
        made.opcodeIndex = self._code(getattr(self.schema.BuiltinOperator, name), version)
        made.inputs, made.outputs = list(inputs), list(outputs)
        if table:
            made.builtinOptionsType = getattr(self.schema.BuiltinOptions, table)
            made.builtinOptions = getattr(self.schema, f"{table}T")()
            for key, value in (options or {}).items():
                setattr(made.builtinOptions, key, value)
        self._operators.append(made)

    def rename(self, tensor: int, name: str) -> None:
        """Changes the display name of a tensor."""
        self._tensors[tensor].name = name

    def finish(
        self,
        inputs: Mapping[str, int] | Sequence[int],
        outputs: Mapping[str, int] | Sequence[int],
        metadata: Mapping[str, str] | None = None,
    ) -> bytes:
        """Serialises the file.

        Args:
            inputs: tensors; with names, the file has a signature of these names.
            outputs: tensors, with names if `inputs` have them.
            metadata: texts by key.

        Raises:
            ModelError: the weights exceed the size limit of the format.
        """
        import flatbuffers

        if self._bytes + _ROOM > _LIMIT:
            raise ModelError(f"{self._bytes >> 20} MB of weights do not fit a TFLite file, which holds 2 GB")
        graph = self.schema.SubGraphT()
        graph.name = self._name
        graph.tensors, graph.operators = self._tensors, self._operators
        graph.inputs, graph.outputs = _numbers(inputs), _numbers(outputs)
        model = self.schema.ModelT()
        model.version = _SCHEMA_VERSION
        model.description = "nnstretch"
        model.operatorCodes = [self._operator_code(*key) for key in self._codes]
        model.subgraphs = [graph]
        if isinstance(inputs, Mapping) and isinstance(outputs, Mapping):
            model.signatureDefs = [self._signature(inputs, outputs)]
        model.metadata = [self._metadata(key, text) for key, text in (metadata or {}).items()]
        builder = flatbuffers.Builder(self._bytes + _ROOM)
        model.buffers = [_Aligned(buffer) for buffer in self._buffers]
        builder.Finish(model.Pack(builder), file_identifier=IDENTIFIER)
        return bytes(builder.Output())

    def _signature(self, inputs: Mapping[str, int], outputs: Mapping[str, int]) -> Any:
        """The names under which `Interpreter.get_signature_runner` takes inputs and returns outputs."""
        made = self.schema.SignatureDefT()
        made.signatureKey, made.subgraphIndex = _SIGNATURE, 0
        made.inputs, made.outputs = (
            [self._named(name, tensor) for name, tensor in tensors.items()] for tensors in (inputs, outputs)
        )
        return made

    def _named(self, name: str, tensor: int) -> Any:
        made = self.schema.TensorMapT()
        made.name, made.tensorIndex = name, tensor
        return made

    def _metadata(self, key: str, text: str) -> Any:
        made = self.schema.MetadataT()
        made.name, made.buffer = key, self._buffer(text.encode())
        return made

    def _buffer(self, content: bytes) -> int:
        """Adds a buffer; returns its number."""
        buffer = self.schema.BufferT()
        buffer.data = np.frombuffer(content, np.uint8)
        self._bytes += buffer.data.nbytes + _ALIGNMENT
        self._buffers.append(buffer)
        return len(self._buffers) - 1

    def _add(self, shape: Sequence[int], kind: int, name: str, buffer: int) -> int:
        made = self.schema.TensorT()
        made.shape, made.type, made.name, made.buffer = [int(d) for d in shape], kind, name, buffer
        self._tensors.append(made)
        return len(self._tensors) - 1

    def _quantize(self, tensor: int, scales: np.ndarray, zero_point: int, axis: int = 0) -> None:
        made = self.schema.QuantizationParametersT()
        made.scale = scales.astype(np.float32)
        made.zeroPoint = np.full(scales.shape, zero_point, np.int64)
        made.quantizedDimension = axis
        self._tensors[tensor].quantization = made

    def _int8_version(self, name: str, inputs: Sequence[int]) -> int:
        if name == "FULLY_CONNECTED" and len(self._tensors[inputs[1]].quantization.scale) > 1:
            return _DENSE_PER_CHANNEL
        return _INT8_VERSIONS.get(name, _INT8_VERSION)

    def _code(self, builtin: int, version: int) -> int:
        return self._codes.setdefault((builtin, version), len(self._codes))

    def _operator_code(self, builtin: int, version: int) -> Any:
        made = self.schema.OperatorCodeT()
        made.builtinCode, made.version = builtin, version
        made.deprecatedBuiltinCode = min(builtin, self.schema.BuiltinOperator.PLACEHOLDER_FOR_GREATER_OP_CODES)
        return made


def _numbers(tensors: Mapping[str, int] | Sequence[int]) -> list[int]:
    return list(tensors.values() if isinstance(tensors, Mapping) else tensors)


class _Aligned:
    """A buffer that is written at a multiple of 16 bytes, as the format requires."""

    def __init__(self, buffer: Any) -> None:
        self._buffer = buffer

    def Pack(self, builder: Any) -> Any:  # noqa: N802 - name in the schema's classes
        """Writes the buffer."""
        if self._buffer.data is not None:
            builder.Prep(_ALIGNMENT, self._buffer.data.nbytes)
        return self._buffer.Pack(builder)
