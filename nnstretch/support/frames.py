"""Frames: messages between nnstretch and its worker processes over pipes.

    frame  := length of header (8 bytes, little-endian)  header  array*
    header := JSON object: {"message": {…}, "arrays": [[name, bytes], …]}
    array  := the named array as .npy, without objects

Received data are never executed or unpickled.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

_LENGTH = struct.Struct("<Q")
_LONGEST_HEADER = 64 << 20

Arrays = Mapping[str, np.ndarray]


def write_frame(stream: IO[bytes], message: Mapping[str, Any], arrays: Arrays | None = None) -> None:
    """Sends a JSON-serialisable message with arrays.

    Raises:
        BrokenPipeError: the other process has ended.
    """
    blobs: list[tuple[str, bytes]] = []
    for name, array in (arrays or {}).items():
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        blobs.append((name, buffer.getvalue()))
    header = json.dumps({"message": dict(message), "arrays": [[name, len(data)] for name, data in blobs]}).encode()
    for data in (_LENGTH.pack(len(header)) + header, *(data for _, data in blobs)):
        _write(stream, data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Receives one frame: its message and its arrays.

    Raises:
        EOFError: the other process has ended, or the data are not a frame.
    """
    (length,) = _LENGTH.unpack(_read(stream, _LENGTH.size))
    if length > _LONGEST_HEADER:
        raise EOFError(f"a frame header of {length} bytes is too long")
    try:
        header = json.loads(_read(stream, length))
        return dict(header["message"]), {name: _array(_read(stream, size)) for name, size in header["arrays"]}
    except (ValueError, KeyError, TypeError) as error:
        raise EOFError(f"not a frame: {error}") from error


def _array(data: bytes) -> np.ndarray:
    return np.asarray(np.load(io.BytesIO(data), allow_pickle=False))


def _write(stream: IO[bytes], data: bytes) -> None:
    """Writes all of `data`: an unbuffered stream may take a part at a time."""
    left = memoryview(data)
    while left:
        left = left[stream.write(left) :]


def _read(stream: IO[bytes], size: int) -> bytes:
    """Exactly `size` bytes of a buffered or unbuffered stream."""
    data = bytearray()
    while len(data) < size:
        part = stream.read(size - len(data))
        if not part:
            raise EOFError(f"the stream ended after {len(data)} of {size} bytes")
        data += part
    return bytes(data)
