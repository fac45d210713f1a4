"""Words and texts of model files, and copies with others."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from nnstretch.package.standalone import check

_HEADER = 64
_WORD = 8


def words_of(model: Path) -> list[int]:
    """The numbers of a model file after its header."""
    content = model.read_bytes()
    (count,) = struct.unpack_from("<q", content, 24)
    return list(struct.unpack_from(f"<{count}q", content, _HEADER))


def after_kernels(model: Path) -> int:
    """Index of the word after the number of kernels, in a file without types: of devices, or else of calls."""
    words = words_of(model)
    at = 5
    for _ in range(words[3] + words[4]):
        at += 1 + words[at]
    n_queues, at = words[at], at + 1
    for _ in range(n_queues):
        at += 1 + words[at]
        at += 1 + words[at]
    return at + 1


def changed(
    model: Path,
    path: Path,
    texts: Mapping[str, str] = MappingProxyType({}),
    numbers: Mapping[int, int] = MappingProxyType({}),
) -> Path:
    """A copy of a model file with other texts of the same lengths and other words, and a checksum that fits."""
    content = bytearray(model.read_bytes())
    for index, number in numbers.items():
        struct.pack_into("<q", content, _HEADER + _WORD * index, number)
    (n_text, start) = struct.unpack_from("<2q", content, 32)
    at = _HEADER + _WORD * len(words_of(model))
    for old, new in texts.items():
        text = content[at : at + n_text]
        assert old.encode() in text
        assert len(old) == len(new)
        content[at : at + n_text] = text.replace(old.encode(), new.encode())
    struct.pack_into("<Q", content, 56, 0)
    struct.pack_into("<Q", content, 56, check(content[:start], bytes(content[start:])))
    path.write_bytes(content)
    return path
