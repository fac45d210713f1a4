"""OpenCL programs on disk: binaries, and why sources do not compile, by source, options, device and driver."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from contextlib import suppress

from nnstretch.errors import FileError
from nnstretch.support.settings import atomic_write, cache_dir, write_text

_DIGEST = hashlib.sha256().digest_size
_FAILURE_COUNTS = 24 * 3600
"""Seconds; a compiler may have failed for want of memory."""


class CachedProgram:
    """What is known of a program. A driver's update makes another program of it.

    Args:
        identity: all that decides what the driver makes: text, options, device and driver.

    Raises:
        FileError: the cache directory cannot be created.
    """

    def __init__(self, identity: Iterable[str]) -> None:
        name = hashlib.sha256("\0".join(identity).encode()).hexdigest()
        self._binary, self._failure = (cache_dir("opencl") / f"{name}{ending}" for ending in (".bin", ".failed"))

    @property
    def binary(self) -> bytes:
        """The binary; empty if it is missing or damaged, on which drivers may crash."""
        stored = self._binary.read_bytes() if self._binary.exists() else b""
        digest, binary = stored[:_DIGEST], stored[_DIGEST:]
        return binary if hashlib.sha256(binary).digest() == digest else b""

    def keep_binary(self, binary: bytes) -> None:
        """Keeps what the driver has made.

        Raises:
            FileError: the file cannot be written.
        """
        with atomic_write(self._binary) as file:
            file.write(hashlib.sha256(binary).digest() + binary)

    @property
    def failure(self) -> str:
        """Why the program does not compile; empty if that is not known, or was found long ago."""
        with suppress(OSError, UnicodeError):
            if time.time() - self._failure.stat().st_mtime < _FAILURE_COUNTS:
                return self._failure.read_text(encoding="utf-8")
        return ""

    def keep_failure(self, reason: str) -> None:
        """Keeps one line on why the program does not compile; without it, the next caller compiles it again."""
        with suppress(FileError):
            write_text(self._failure, reason)
