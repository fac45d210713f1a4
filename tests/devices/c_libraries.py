"""Shared libraries that tests are written in C for."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

from nnstretch.devices.engine.build import BuildTarget, local_isa, make_toolchain
from nnstretch.settings import cache_dir


def c_library(source: Path, sanitize: str | None = None) -> Path:
    """The library made of one C file by the engine's compiler, in the cache; with a sanitizer as for `build_engine`."""
    toolchain = make_toolchain(BuildTarget(local_isa()), sanitize)
    name = hashlib.sha256(toolchain.identity.encode() + source.read_bytes()).hexdigest()[:16]
    made = cache_dir() / "engine" / f"{source.stem}-{name}.so"
    if not made.exists():
        made.parent.mkdir(parents=True, exist_ok=True)
        part = made.with_suffix(f".{os.getpid()}.part")
        flags = (*(f for f in toolchain.flags if not f.startswith("-fvisibility")), "-shared")
        subprocess.run([*toolchain.command, *flags, str(source), "-o", str(part), *toolchain.link_flags], check=True)
        part.replace(made)
    return made
