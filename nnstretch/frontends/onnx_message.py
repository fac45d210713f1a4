"""The message in an ONNX file, its large weights read straight into arrays of their own.

Every parser, checker and converter copies the weights in a protocol buffer's message, which are most of a network. So the
file is read field by field: large weights of the main graph go straight into arrays, the rest stays the message.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from io import BufferedReader
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from numpy.typing import NDArray

from nnstretch.errors import FileError, ModelError, first_line
from nnstretch.support.foreign_files import in_place_of_folder, instead_of
from nnstretch.support.near_files import advice_for_missing

LARGE = 1 << 16
"""Bytes from which on a weight is taken out of the message."""

# Wire types of fields: https://protobuf.dev/programming-guides/encoding
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT = 10
_LARGEST_KEY = 2**32 - 1
# Stands for a weight when the message is checked; enough bytes for one element of any type.
_ONE_ELEMENT = bytes(16)
# Fields of a tensor that keeps its values in raw_data.
_OF_A_WEIGHT = {"name", "dims", "data_type", "raw_data", "doc_string", "metadata_props"}


@dataclass(frozen=True)
class Message:
    """What a file says; the values of `weights` are not in `proto`.

    Attributes:
        proto: the model. The tensors that `weights` has are there with names, types and shapes, but no data.
        weights: name of an initializer of the main graph -> its value.
    """

    proto: onnx.ModelProto
    weights: dict[str, NDArray[np.generic]]


def read_message(path: Path) -> Message:
    """The message in a file, checked; data that it keeps in other files are checked to be there, but not read.

    Raises:
        FileError: the file or one with its data cannot be read.
        ModelError: it is no valid ONNX model.
    """
    message = _read(path)
    _sort_nodes(message.proto.graph)
    _check_external_data(message.proto, path)
    _check(message, path)
    return message


def _read(path: Path) -> Message:
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            walk = _Walk(file, size)
            try:
                content = walk.model()
            except _UnusualError:
                # Whether that is a model is for the parser to say.
                file.seek(0)
                content, walk.taken = file.read(), {}
    except OSError as error:
        if path.is_dir():
            raise FileError(in_place_of_folder(path)) from error
        advice = "give an ONNX file"
        if isinstance(error, FileNotFoundError):
            advice = advice_for_missing(path, advice)
        raise FileError(f"cannot read {path}: {error.strerror}; {advice}") from error
    except ValueError as error:  # a null byte
        raise FileError(f"cannot read {str(path)!r}: {error}; give an ONNX file") from error
    if not content:
        raise ModelError(f"{path} is empty; an ONNX file was wanted")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(content)
    except DecodeError as error:
        if path.suffix == ".nns":
            raise ModelError(
                f"{path} is a package, which is compiled already; give the model that it was made from"
            ) from error
        raise ModelError(instead_of(path) or _damaged(path, f" ({size} bytes)")) from error
    if not proto.HasField("graph") or not proto.ir_version:
        raise ModelError(instead_of(path) or _damaged(path, ": it holds no graph"))
    return Message(proto, dict(_verified_weights(proto, walk.taken)))


def _damaged(path: Path, how: str) -> str:
    return f"{path} is not an ONNX file, or it is truncated{how}; export or copy it again"


def _verified_weights(proto: onnx.ModelProto, taken: dict[int, bytes]) -> Iterator[tuple[str, NDArray[np.generic]]]:
    """Names and values of the weights that match their tensors; puts the others back, for the checker to refuse."""
    names = set()
    for position, content in taken.items():
        tensor = proto.graph.initializer[position]
        if _describes(tensor, len(content)) and tensor.name not in names:
            names.add(tensor.name)
            yield tensor.name, np.frombuffer(content, ir.DataType(tensor.data_type).numpy()).reshape(tuple(tensor.dims))
        else:
            tensor.raw_data = content


def _describes(tensor: onnx.TensorProto, size: int) -> bool:
    """Whether a tensor is one of whole bytes, `size` of them, that has no other data."""
    if any(field.name not in _OF_A_WEIGHT for field, _ in tensor.ListFields()):
        return False
    try:
        bits = ir.DataType(tensor.data_type).bitwidth
    except (ValueError, TypeError):  # no type, or one without a size
        return False
    return bits % 8 == 0 and min(tensor.dims, default=1) > 0 and math.prod(tensor.dims) * bits // 8 == size


class _UnusualError(Exception):
    """The file has what ONNX files do not have, or ends too early."""


class _Walk:
    """Goes through a model's message in a file, and leaves out the large weights of its main graph.

    Attributes:
        taken: position among the graph's initializers -> bytes of the weight.
    """

    def __init__(self, file: BufferedReader, size: int) -> None:
        self.taken: dict[int, bytes] = {}
        self._file = file
        self._place = 0
        self._size = size
        self._initializers = 0

    def model(self) -> bytes:
        """The message without them."""
        return self._fields(self._size, onnx.ModelProto.GRAPH_FIELD_NUMBER, self._graph)

    def _graph(self, end: int) -> bytes:
        return self._fields(end, onnx.GraphProto.INITIALIZER_FIELD_NUMBER, self._initializer)

    def _initializer(self, end: int) -> bytes:
        content = self._fields(end, onnx.TensorProto.RAW_DATA_FIELD_NUMBER, self._data)
        self._initializers += 1
        return content

    def _data(self, end: int) -> bytes:
        length = end - self._place
        # Where a field is there twice, the last one counts.
        self.taken.pop(self._initializers, None)
        content = self._bytes(length)
        if length < LARGE:
            return content
        self.taken[self._initializers] = content
        return b""

    def _fields(self, end: int, number: int, enter: Callable[[int], bytes]) -> bytes:
        """The fields up to `end`, in which `enter` says what is left of those with a certain number."""
        parts = []
        while self._place < end:
            key, head = self._varint()
            kind = key & 7
            if not 8 <= key <= _LARGEST_KEY:
                raise _UnusualError
            if kind == _BYTES:
                length, digits = self._varint()
                if length > end - self._place:
                    raise _UnusualError
                if key >> 3 == number:
                    content = enter(self._place + length)
                    parts += [head, _encoded(len(content)), content]
                else:
                    parts += [head, digits, self._bytes(length)]
            elif kind == _VARINT:
                parts += [head, self._varint()[1]]
            elif kind in (_FIXED32, _FIXED64):
                parts += [head, self._bytes(4 if kind == _FIXED32 else 8)]
            else:
                raise _UnusualError
        if self._place != end:
            raise _UnusualError
        return b"".join(parts)

    def _varint(self) -> tuple[int, bytes]:
        """A number, and the bytes that it was written in."""
        number, digits = 0, b""
        while len(digits) < _LONGEST_VARINT:
            digit = self._bytes(1)
            number |= (digit[0] & 127) << 7 * len(digits)
            digits += digit
            if digit[0] < 128:
                return number, digits
        raise _UnusualError

    def _bytes(self, count: int) -> bytes:
        content = self._file.read(count)
        if len(content) != count:
            raise _UnusualError
        self._place += count
        return content


def _encoded(number: int) -> bytes:
    digits = bytearray()
    while number > 127:
        digits.append(number & 127 | 128)
        number >>= 7
    return bytes(digits + bytes([number]))


def _sort_nodes(graph: onnx.GraphProto) -> None:
    """Sorts nodes that other tools leave unsorted (ONNX Runtime's converter to float16 is one); cycles are for the checker."""
    made_by = {name: place for place, node in enumerate(graph.node) for name in node.output if name}
    waits = [
        {made_by[name] for name in _names_read(node) if name in made_by and made_by[name] != place}
        for place, node in enumerate(graph.node)
    ]
    if all(not wanted or max(wanted) < place for place, wanted in enumerate(waits)):
        return
    with suppress(CycleError):
        nodes = [graph.node[place] for place in TopologicalSorter(dict(enumerate(waits))).static_order()]
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)


def _names_read(node: onnx.NodeProto) -> Iterator[str]:
    """Names that a node and the graphs inside it read."""
    yield from node.input
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield from _names_read(inner)
            yield from (value.name for value in graph.output)


def _check(message: Message, path: Path) -> None:
    try:
        onnx.checker.check_model(_as_the_checker_wants_it(message))
    except (onnx.checker.ValidationError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} is not a valid ONNX model: {first_line(error)}") from error
    if not message.proto.graph.output:
        raise ModelError(f"{path} has no outputs, so there is nothing to compute; export it again")


def _as_the_checker_wants_it(message: Message) -> onnx.ModelProto:
    """The model with single elements in the places of weights that are not in it, whose sizes or places are known to be right.

    Inputs and outputs without a shape, which ONNX Runtime takes, have that of a number.
    """
    model = onnx.ModelProto()
    model.CopyFrom(message.proto)
    taken = [tensor for tensor in model.graph.initializer if tensor.name in message.weights]
    for tensor in (*taken, *_external_tensors(model)):
        for name in ("dims", "data_location", "external_data"):
            tensor.ClearField(name)
        tensor.raw_data = _ONE_ELEMENT
    for value in (*model.graph.input, *model.graph.output):
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape"):
            value.type.tensor_type.shape.SetInParent()
    return model


def _tensors(nodes: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.TensorProto]:
    """All tensors of a graph or function and its subgraphs."""
    if isinstance(nodes, onnx.GraphProto):
        yield from nodes.initializer
        for sparse in nodes.sparse_initializer:
            yield from (sparse.values, sparse.indices)
    for node in nodes.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for sparse in (attribute.sparse_tensor, *attribute.sparse_tensors):
                yield from (sparse.values, sparse.indices)
            for inner in (attribute.g, *attribute.graphs):
                yield from _tensors(inner)


def _external_tensors(proto: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The tensors whose data are in other files."""
    for part in (proto.graph, *proto.functions):
        yield from (tensor for tensor in _tensors(part) if tensor.data_location == onnx.TensorProto.EXTERNAL)


def _check_external_data(proto: onnx.ModelProto, path: Path) -> None:
    """Weights in other files must be there, complete, and in the folder of the model."""
    folder = path.resolve().parent
    for tensor in _external_tensors(proto):
        _check_place(tensor, folder, path)


def _check_place(tensor: onnx.TensorProto, folder: Path, path: Path) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    place = (folder / location.replace("\0", "")).resolve()
    if not location or "\0" in location or not place.is_relative_to(folder):
        raise ModelError(
            f"{path} wants the data of {tensor.name!r} from {location!r}, outside of its folder; "
            "save the model with its data beside it"
        )
    try:
        size = place.stat().st_size
    except OSError as error:
        raise FileError(
            f"{path} keeps the data of {tensor.name!r} in {place}: {error.strerror}; copy that file too"
        ) from error
    try:
        offset, length = (int(entries.get(key, "0")) for key in ("offset", "length"))
    except ValueError:
        offset, length = -1, 0
    if offset < 0 or length < 0:
        raise ModelError(f"{path} has no numbers for the place of {tensor.name!r} in {location}; export it again")
    if (end := offset + length) > size:
        raise ModelError(
            f"{place} has {size} bytes, {path} wants {end} for {tensor.name!r}; it is truncated, copy it again"
        )
