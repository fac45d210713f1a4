"""Frames: how nnstretch talks to processes of its own over a pipe.

    frame  := length of header (8 bytes, little-endian)  header  array*
    header := JSON object: {"message": {…}, "arrays": [[name, bytes], …]}
    array  := the named array as .npy, without objects

Nothing that arrives is executed or unpickled.
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
        BrokenPipeError: the other side has ended.
    """
    blobs: list[tuple[str, bytes]] = []
    for name, array in (arrays or {}).items():
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        blobs.append((name, buffer.getvalue()))
    header = json.dumps({"message": dict(message), "arrays": [[name, len(data)] for name, data in blobs]}).encode()
    stream.write(_LENGTH.pack(len(header)) + header)
    for _, data in blobs:
        stream.write(data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Receives one frame: its message and its arrays.

    Raises:
        EOFError: the other side has ended, or what came is no frame.
    """
    (length,) = _LENGTH.unpack(_read(stream, _LENGTH.size))
    if length > _LONGEST_HEADER:
        raise EOFError(f"a frame's header of {length} bytes is none")
    try:
        header = json.loads(_read(stream, length))
        return dict(header["message"]), {name: _array(_read(stream, size)) for name, size in header["arrays"]}
    except (ValueError, KeyError, TypeError) as error:
        raise EOFError(f"not a frame: {error}") from error


def _array(data: bytes) -> np.ndarray:
    return np.asarray(np.load(io.BytesIO(data), allow_pickle=False))


def _read(stream: IO[bytes], size: int) -> bytes:
    """Exactly `size` bytes, of a stream that may be buffered or not."""
    data = bytearray()
    while len(data) < size:
        part = stream.read(size - len(data))
        if not part:
            raise EOFError(f"{size} bytes were wanted, {len(data)} came before the end")
        data += part
    return bytes(data)
