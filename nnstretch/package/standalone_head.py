"""What the file of a standalone model (`.nnm`) says of itself, read without the library that loads it."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nnstretch.errors import FileError, PackageError
from nnstretch.graph.dtypes import DEFAULT_DTYPE, ELEMENT_TYPES
from nnstretch.graph.layer import TensorType
from nnstretch.package.standalone import (
    FIRST_FORMAT,
    HAS_CALLS,
    HAS_DEVICES,
    HAS_TYPES,
    LAST_FORMAT,
    MAGIC,
    SUFFIX,
    format_has,
)
from nnstretch.scheduler.plan.schema import PlanTensor
from nnstretch.scheduler.runtime.arguments import Arguments

_HEADER = struct.Struct("<8q")
_LONGEST_NAME = 64
"""Characters of an instruction set's name."""
_BEFORE_COUNTS = 3
"""Words before the numbers of inputs and outputs."""
_BEFORE_NAMES = 2
"""Texts before the names of inputs: the instruction set, and the model's name."""
_DTYPES = {element.code: name for name, element in ELEMENT_TYPES.items() if element.code}


class Head(NamedTuple):
    """The header of a model file.

    Attributes:
        format: its number.
        isa: name of the instruction set that it is for; empty if the file is too short to name one.
        start: bytes before its constants.
        n_words: numbers of its program.
    """

    format: int
    isa: str
    start: int
    n_words: int

    @property
    def has_devices(self) -> bool:
        """Whether it may have OpenCL queues."""
        return format_has(self.format, HAS_DEVICES)

    @property
    def has_litert(self) -> bool:
        """Whether it may have LiteRT queues."""
        return format_has(self.format, HAS_CALLS)


class Ends(NamedTuple):
    """Inputs and outputs of a model file."""

    inputs: tuple[PlanTensor, ...]
    outputs: tuple[PlanTensor, ...]

    def arrays(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The arrays of the inputs in their order, contiguous; those of bfloat16 hold its bits.

        Raises:
            FeedError: unknown or missing names, wrong shapes or types.
        """
        arrays = Arguments(self.inputs, self.outputs).arrays(feeds)
        return {tensor.name: array for tensor, array in zip(self.inputs, arrays, strict=True)}


def is_standalone(path: Path) -> bool:
    """Whether `path` is meant as a standalone model: by its ending, or by the file's signature."""
    if path.suffix == SUFFIX:
        return True
    try:
        with path.open("rb") as file:
            return file.read(8) == struct.pack("<q", MAGIC)
    except OSError:
        return False


def read_head(path: Path) -> Head:
    """The header of a model file, which may be damaged or of an unknown format.

    Raises:
        FileError: it cannot be read.
        PackageError: it is no model file.
    """
    try:
        with path.open("rb") as file:
            header = file.read(_HEADER.size)
            if len(header) < _HEADER.size or header[:8] != struct.pack("<q", MAGIC):
                raise PackageError(f"{path} is no model file of nnstretch; give what compile --standalone wrote")
            _, number, _, words, _, start, *_ = _HEADER.unpack(header)
            file.seek(_HEADER.size + 8 * max(0, min(words, 1 << 40)))
            isa = file.read(_LONGEST_NAME).partition(b"\0")[0].decode(errors="replace")
            return Head(number, isa, start, words)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error


def read_ends(path: Path) -> Ends:
    """Inputs and outputs of a model file, which may be for another machine.

    Raises:
        FileError: it cannot be read.
        PackageError: it is no model file, is damaged, or has an unknown format.
    """
    head = read_head(path)
    if not FIRST_FORMAT <= head.format <= LAST_FORMAT:
        raise PackageError(
            f"{path} has format {head.format}, this nnstretch reads {FIRST_FORMAT} to {LAST_FORMAT}; make it again: "
            "nnstretch compile MODEL --standalone"
        )
    try:
        with path.open("rb") as file:
            content = file.read(max(0, min(head.start, path.stat().st_size)))
        return _ends(content, head)
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error
    except (struct.error, ValueError, KeyError, StopIteration) as error:
        raise PackageError(f"{path} is damaged: it does not describe its inputs and outputs; copy it again") from error


def _ends(content: bytes, head: Head) -> Ends:
    """Raises ValueError, KeyError, StopIteration or struct.error if `content`, the file up to its constants, is damaged."""
    words = islice(iter(struct.unpack_from(f"<{head.n_words}q", content, _HEADER.size)), _BEFORE_COUNTS, None)
    texts = islice(iter(content[_HEADER.size + 8 * head.n_words :].split(b"\0")), _BEFORE_NAMES, None)
    n_inputs, n_outputs = next(words), next(words)
    has_types = format_has(head.format, HAS_TYPES)
    tensors = [_tensor(name.decode(), words, has_types) for name in islice(texts, n_inputs + n_outputs)]
    if n_inputs < 0 or len(tensors) != n_inputs + n_outputs:
        raise ValueError("there are fewer names than inputs and outputs")
    return Ends(tuple(tensors[:n_inputs]), tuple(tensors[n_inputs:]))


def _tensor(name: str, words: Iterator[int], has_type: bool) -> PlanTensor:
    dtype = _DTYPES[next(words)] if has_type else DEFAULT_DTYPE
    rank = next(words)
    shape = tuple(islice(words, rank))
    if len(shape) != rank:
        raise ValueError("the shape ends early")
    return PlanTensor(name, TensorType(shape, dtype))
