"""Builds the shared library and the executable that run model files without Python.

Both contain the engine and the loader of devices/engine/standalone, and run any model file for the same
instruction set. They are built once per target and kept in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nnstretch.devices.engine.build.engine_library import SourceFile, build_file, c_files, engine_sources, source_files
from nnstretch.devices.engine.build.instruction_sets import BuildTarget
from nnstretch.devices.engine.build.toolchains import ENGINE_FOLDER, Toolchain, make_toolchain

LIBRARY = "libnnstretch.so"
HEADER = ENGINE_FOLDER / "standalone" / "nnstretch.h"
EXAMPLE = ENGINE_FOLDER / "standalone" / "example" / "example.c"

# musl gives threads 128 KiB of stack unless the executable asks for more.
_STACK = "-Wl,-z,stack-size=1048576"


@dataclass(frozen=True)
class Binaries:
    """Files in the cache.

    Attributes:
        library: the shared library; its file name after installation is `LIBRARY`.
        executable: runs the model file beside it; linked statically for musl.
    """

    library: Path
    executable: Path


def build_binaries(target: BuildTarget, sanitize: str | None = None) -> Binaries:
    """The library and the executable for a target, built now if the cache does not hold them.

    Args:
        target: what to build for.
        sanitize: "address,undefined" or "thread": build with sanitizers by the system's gcc for this machine.

    Raises:
        BuildError: no compiler, or a source does not compile; names the first error and a file with the whole log.
        FileError: the cache cannot be written.
    """
    front = make_toolchain(target, sanitize, oldest=True)
    library = [*engine_sources(target, sanitize), *_front_sources(front, "standalone/*.c")]
    executable = [*library, *_front_sources(front, "standalone/cli/*.c")]
    strip = () if sanitize else ("-s",)
    static = ("-static", _STACK) if target.system == "linux-musl" else ()
    return Binaries(
        build_file(f"{target}-lib", ".so", library, front, "-shared", f"-Wl,-soname,{LIBRARY}", *strip),
        build_file(f"{target}-run", "", executable, front, *static, *strip),
    )


def _front_sources(toolchain: Toolchain, pattern: str) -> list[SourceFile]:
    return source_files(toolchain, c_files(pattern), ("include", "runtime", "standalone"))
