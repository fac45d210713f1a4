"""Binaries of OpenCL programs on disk, by source, options, device and driver."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from nnstretch.support.settings import atomic_write, cache_dir

_DIGEST = hashlib.sha256().digest_size


class CachedProgram:
    """What is known of a program. A driver's update makes another program of it.

    Args:
        identity: all that decides what the driver makes: text, options, device and driver.

    Raises:
        FileError: the cache directory cannot be created.
    """

    def __init__(self, identity: Iterable[str]) -> None:
        name = hashlib.sha256("\0".join(identity).encode()).hexdigest()
        self._binary = cache_dir("opencl") / f"{name}.bin"

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
