"""Shared libraries for tests, written in C, and engines built with sanitizers."""

from __future__ import annotations

import hashlib
import itertools
import os
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from nnstretch.devices.engine.build import toolchains
from nnstretch.devices.engine.build.engine_library import SourceFile, engine_sources
from nnstretch.devices.engine.build.instruction_sets import BuildTarget, local_features, local_isa
from nnstretch.devices.engine.build.toolchains import ENGINE_FOLDER, make_toolchain, output
from nnstretch.errors import BuildError
from nnstretch.support.settings import cache_dir

_RUNTIME = ENGINE_FOLDER / "runtime"


def c_library(source: Path, sanitize: str | None = None, includes: Sequence[Path] = ()) -> Path:
    """Compiles one C file into a cached library with the engine's compiler; sanitizers as for `build_engine`.

    Name the engine's sources that it includes, so that their changes rebuild it.
    """
    toolchain = make_toolchain(BuildTarget(local_isa()), sanitize)
    text = b"".join(file.read_bytes() for file in (source, *includes))
    name = hashlib.sha256(toolchain.identity.encode() + text).hexdigest()[:16]
    made = cache_dir("test-libraries") / f"{source.stem}-{name}.so"
    if not made.exists():
        part, compiled = (made.with_suffix(f".{os.getpid()}.{suffix}") for suffix in ("part", "o"))
        flags = (*(f for f in toolchain.flags if not f.startswith("-fvisibility")), "-c")
        # As engines are built: in the cache, and linked without the flags of a CPU, for each of which zig compiles its
        # runtime library again.
        for command in (
            [*toolchain.command, *flags, str(source), "-o", str(compiled)],
            [*toolchain.command, "-shared", str(compiled), "-o", str(part), *toolchain.link_flags],
        ):
            subprocess.run(command, check=True, cwd=made.parent)
        compiled.unlink()
        part.replace(made)
    return made


def runtime_files() -> list[Path]:
    """The files of the engine's runtime."""
    return sorted(path for path in _RUNTIME.rglob("*") if path.is_file())


def leave_out_optimisation(patch: pytest.MonkeyPatch) -> None:
    """Has zig build without optimisation, where nothing is measured: in a tenth of the time.

    Nor are functions inlined that say they always are: most of the time would go into the copies.
    """
    level = ("-O0", "-Xclang", "-disable-llvm-passes")
    flags = [level if flag == "-O3" else (flag,) for flag in toolchains.FLAGS]
    patch.setattr(toolchains, "FLAGS", tuple(itertools.chain(*flags)))


def sanitizer_preload(sanitize: str) -> str:
    """The value of LD_PRELOAD with which a process can load an engine built with `sanitize`.

    Raises:
        BuildError: gcc or its sanitizer library is not installed.
    """
    name = "libasan.so" if sanitize.startswith("address") else "libtsan.so"
    path = Path(output(["gcc", f"-print-file-name={name}"]))
    if not path.is_absolute():
        raise BuildError(f"gcc has no {name}; install its sanitizer libraries")
    return str(path.resolve())


def runnable_sources(target: BuildTarget, sanitize: str | None, masks: Iterable[str] = ("",)) -> list[SourceFile]:
    """The engine's sources, with those variants of kernels that this CPU takes.

    Sanitizers multiply compile time, so nothing is instrumented that cannot run.

    Args:
        target: of this machine's architecture.
        sanitize: as for `build_engine`.
        masks: values of NNSTRETCH_CPU_FEATURES that the program will run with.
    """
    features = set(local_features())
    chosen = (engine_sources(target, sanitize, features - {mask.removeprefix("-")}) for mask in masks)
    return list(dict.fromkeys(source for sources in chosen for source in sources))


_WATCHED_KERNELS = ("eltwise.c", "reorder.c")


def thread_sanitized_sources(target: BuildTarget) -> list[SourceFile]:
    """The engine's sources with the thread sanitizer.

    Races lie between what queues and threads run. So of the kernels only some watch for them; to build the others so would
    take longer than all tests that use them.
    """
    return [
        one if _RUNTIME in one.path.parents or one.path.name in _WATCHED_KERNELS else other
        for one, other in zip(engine_sources(target, "thread"), engine_sources(target), strict=True)
    ]


def sources_with_kernels_of(target: BuildTarget, system: str) -> list[SourceFile]:
    """The engine's sources for a target, whose kernels are compiled for another system with the same instruction set.

    Kernels include no header of a system's own. So where other tests compile and run them for one system, those of another
    show nothing more, and take most of the engine's compile time.
    """
    sources = zip(engine_sources(target), engine_sources(BuildTarget(target.isa, system)), strict=True)
    return [one if _RUNTIME in one.path.parents else other for one, other in sources]
