"""Shared libraries for tests, written in C."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from nnstretch.devices.engine.build.instruction_sets import BuildTarget, local_isa
from nnstretch.devices.engine.build.toolchains import make_toolchain
from nnstretch.support.settings import cache_dir


def c_library(source: Path, sanitize: str | None = None, includes: Sequence[Path] = ()) -> Path:
    """Compiles one C file into a cached library with the engine's compiler; sanitizers as for `build_engine`.

    Name the engine's sources that it includes, so that their changes rebuild it.
    """
    toolchain = make_toolchain(BuildTarget(local_isa()), sanitize)
    text = b"".join(file.read_bytes() for file in (source, *includes))
    name = hashlib.sha256(toolchain.identity.encode() + text).hexdigest()[:16]
    made = cache_dir() / "engine" / f"{source.stem}-{name}.so"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        part = made.with_suffix(f".{os.getpid()}.part")
        flags = (*(f for f in toolchain.flags if not f.startswith("-fvisibility")), "-shared")
        subprocess.run([*toolchain.command, *flags, str(source), "-o", str(part), *toolchain.link_flags], check=True)
        part.replace(made)
    return made
