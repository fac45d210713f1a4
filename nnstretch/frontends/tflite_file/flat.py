"""The tables of a TFLite file, read with suspicion."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nnstretch.devices.external.litert.flatbuffer import IDENTIFIER, load_schema
from nnstretch.errors import FileError, ModelError, first_line
from nnstretch.support.json_text import DAMAGED

_DAMAGED = (*DAMAGED, MemoryError, struct.error)
"""What the classes of the schema raise where offsets or lengths lead out of the file."""
_MOST_AXES = 8
_SCALABLE = ("int8", "uint8", "int16", "int32")
_OWN = "nnstretch."
"""Beginning of the keys of metadata that this project writes."""


@dataclass(frozen=True, eq=False)
class Quantization:
    """Real numbers are `(q - zero_points) * scales`.

    Attributes:
        scales: float32, positive; one, or one for each place of `axis`.
        zero_points: int32, as many.
        axis: of the tensor.
    """

    scales: np.ndarray
    zero_points: np.ndarray
    axis: int


@dataclass(frozen=True, eq=False)
class FlatTensor:
    """One tensor of the file.

    Attributes:
        name: as the file says.
        shape: in the file's order of axes.
        dtype: of the elements, as numpy names it.
        data: of a constant; None if it is computed or an input.
        quantization: of integers that stand for real numbers.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: np.ndarray | None
    quantization: Quantization | None


@dataclass(frozen=True, eq=False)
class FlatOperator:
    """One operator of the file.

    Attributes:
        name: in the schema's BuiltinOperator; of a custom one, its own name.
        is_custom: whether it is none of TFLite's own.
        inputs, outputs: numbers of tensors; -1 for an absent optional input.
        options: the fields of its options; None if it has none.
    """

    name: str
    is_custom: bool
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Any


@dataclass(frozen=True, eq=False)
class FlatFile:
    """The first sub-graph of a TFLite file.

    Attributes:
        tensors: all of them.
        operators: in the order in which they run.
        inputs, outputs: name -> number of its tensor.
        metadata: texts that this project wrote.
    """

    tensors: tuple[FlatTensor, ...]
    operators: tuple[FlatOperator, ...]
    inputs: dict[str, int]
    outputs: dict[str, int]
    metadata: dict[str, str] = field(default_factory=dict)


def read_flat(path: Path) -> FlatFile:
    """The tables of a TFLite file; all numbers of tensors and sizes of data in them are valid.

    Raises:
        FileError: it cannot be read.
        ModelError: it is no TFLite file, is damaged, or has several sub-graphs that call each other.
        MissingExtraError: the package with the file's schema is not installed.
    """
    try:
        content = path.read_bytes()
    except (OSError, ValueError) as error:
        raise FileError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}; give a TFLite file"
        ) from error
    if len(content) < 8 or content[4:8] != IDENTIFIER:
        raise ModelError(
            f"{path} is not a TFLite file, or it is truncated ({len(content)} bytes); convert or copy it again"
        )
    schema = load_schema()
    try:
        return _Reader(schema, schema.ModelT.InitFromPackedBuf(content, 0), path).read()
    except _DAMAGED as error:
        raise ModelError(f"{path} is damaged: {first_line(error)}; convert or copy it again") from error


class _Reader:
    def __init__(self, schema: Any, model: Any, path: Path) -> None:
        self._model, self._path = model, path
        self._operators = {
            number: name for name, number in vars(schema.BuiltinOperator).items() if isinstance(number, int)
        }
        self._types = {
            number: name.lower() for name, number in vars(schema.TensorType).items() if isinstance(number, int)
        }

    def read(self) -> FlatFile:
        if not self._model.subgraphs:
            raise ModelError(f"{self._path} holds no graph; convert it again")
        graph = self._model.subgraphs[0]
        tensors = tuple(self._tensor(number, tensor) for number, tensor in enumerate(_list(graph.tensors)))
        operators = tuple(self._operator(operator, len(tensors)) for operator in _list(graph.operators))
        names = {
            kind: self._ends(kind, _numbers(getattr(graph, kind), len(tensors)), tensors)
            for kind in ("inputs", "outputs")
        }
        return FlatFile(tensors, operators, names["inputs"], names["outputs"], self._metadata())

    def _tensor(self, number: int, tensor: Any) -> FlatTensor:
        name = _text(tensor.name) or f"tensor_{number}"
        shape = tuple(int(length) for length in _list(tensor.shape))
        if len(shape) > _MOST_AXES or min(shape, default=0) < 0:
            raise ModelError(f"{self._path}: tensor {name!r} has the shape {list(shape)}; convert the model again")
        dtype = self._types.get(tensor.type, f"type {tensor.type}")
        if getattr(tensor, "sparsity", None) is not None:
            raise ModelError(f"{self._path}: tensor {name!r} is sparse; convert the model without sparsity")
        return FlatTensor(
            name, shape, dtype, self._data(name, shape, dtype, tensor), _quantization(tensor, shape, dtype)
        )

    def _data(self, name: str, shape: Sequence[int], dtype: str, tensor: Any) -> np.ndarray | None:
        """The elements of a constant."""
        buffers = self._model.buffers
        if tensor.buffer == 0:
            return None
        if not 0 <= tensor.buffer < len(buffers):
            raise ModelError(
                f"{self._path}: tensor {name!r} reads buffer {tensor.buffer} of {len(buffers)}; copy it again"
            )
        data = buffers[tensor.buffer].data
        if data is None or len(data) == 0:
            if getattr(buffers[tensor.buffer], "size", 0):
                raise ModelError(
                    f"{self._path}: the data of {name!r} lies outside of the tables; convert it to less than 2 GB"
                )
            return None
        if dtype not in ("float32", "float16", "float64", "int8", "uint8", "int16", "int32", "int64", "bool"):
            raise ModelError(f"{self._path}: constant {name!r} is of {dtype}; convert the model to float32 or int8")
        array = np.asarray(data, np.uint8)
        if array.size != math.prod(shape) * np.dtype(dtype).itemsize:
            raise ModelError(
                f"{self._path}: the data of {name!r} ({array.size} bytes) does not fit its shape {list(shape)}"
            )
        return np.frombuffer(array.tobytes(), dtype).reshape(tuple(shape))

    def _operator(self, operator: Any, tensors: int) -> FlatOperator:
        codes = self._model.operatorCodes
        if not 0 <= operator.opcodeIndex < len(codes):
            raise ModelError(
                f"{self._path}: an operator has code {operator.opcodeIndex} of {len(codes)}; copy it again"
            )
        code = codes[operator.opcodeIndex]
        # Files of before the code had 32 bits have it in the old field.
        number = max(code.builtinCode, code.deprecatedBuiltinCode)
        name = self._operators.get(number, f"operator {number}")
        is_custom = name == "CUSTOM"
        return FlatOperator(
            _text(code.customCode) if is_custom else name,
            is_custom,
            _numbers(operator.inputs, tensors, optional=True),
            _numbers(operator.outputs, tensors),
            operator.builtinOptions,
        )

    def _ends(self, kind: str, numbers: Sequence[int], tensors: Sequence[FlatTensor]) -> dict[str, int]:
        """Names of inputs or outputs: those of the first signature, or of the tensors."""
        signatures = _list(self._model.signatureDefs)
        named = (
            {entry.tensorIndex: _text(entry.name) for entry in _list(getattr(signatures[0], kind))}
            if signatures
            else {}
        )
        found: dict[str, int] = {}
        for number in numbers:
            name = named.get(number) or tensors[number].name
            while name in found:
                name += "_"
            found[name] = number
        return found

    def _metadata(self) -> dict[str, str]:
        found = {}
        for entry in _list(self._model.metadata):
            key = _text(entry.name)
            if key.startswith(_OWN) and 0 <= entry.buffer < len(self._model.buffers):
                found[key] = bytes(np.asarray(_list(self._model.buffers[entry.buffer].data), np.uint8)).decode()
        return found


def _quantization(tensor: Any, shape: Sequence[int], dtype: str) -> Quantization | None:
    found = tensor.quantization
    scales = np.asarray(_list(found.scale) if found is not None else [], np.float32)
    if scales.size == 0 or dtype not in _SCALABLE:
        return None
    zero_points = np.asarray(_list(found.zeroPoint), np.int64).astype(np.int32)
    zero_points = np.zeros(scales.size, np.int32) if zero_points.size == 0 else zero_points
    zero_points = np.broadcast_to(zero_points, scales.shape)
    axis = int(found.quantizedDimension)
    if scales.size > 1 and not (0 <= axis < len(shape) and shape[axis] == scales.size):
        raise ValueError(f"{scales.size} scales of a tensor of shape {list(shape)} along axis {axis}")
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise ValueError("a quantization scale is not a positive number")
    return Quantization(scales, zero_points, axis if scales.size > 1 else 0)


def _numbers(vector: Any, count: int, *, optional: bool = False) -> tuple[int, ...]:
    numbers = tuple(int(number) for number in _list(vector))
    if any(not (-1 if optional else 0) <= number < count for number in numbers):
        raise ValueError(f"an operator reads or writes tensor {max(numbers)} of {count}")
    return numbers


def _list(vector: Any) -> Any:
    """A vector of the file, which is None where it is empty."""
    return [] if vector is None else vector


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
