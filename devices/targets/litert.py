"""LiteRT on a target: which library the runner opens, and what is pushed for it."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from nnstretch.devices.external.litert.library import LITERT_VARIABLE, packaged_library

_BESIDE = "libLiteRt*.so"
"""Libraries of accelerators, which LiteRT opens from its folder by their names."""


@dataclass(frozen=True)
class LiteRtUse:
    """That models may have LiteRT queues, which needs a runner for the target's C library.

    Attributes:
        library: LiteRT's library for the target; None: the one that the runner finds there.
    """

    library: Path | None = None

    def here(self) -> Path | None:
        """The library for programs of this machine: by default that of LiteRT's package, unless NNSTRETCH_LITERT names one."""
        if self.library is not None:
            return self.library.absolute()
        return None if os.environ.get(LITERT_VARIABLE) else packaged_library()

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """The files to push: the library, then those beside it; none if the runner finds its own."""
        if self.library is None:
            return ()
        beside = sorted(path for path in self.library.parent.glob(_BESIDE) if path.name != self.library.name)
        return (self.library, *beside)

    @cached_property
    def folder(self) -> str:
        """The name of their folder, which begins with a hash of their contents."""
        digest = hashlib.sha256()
        for file in self.files:
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
        return f"{digest.hexdigest()[:20]}.litert"
