"""Builds the native engine on first use and keeps it in the cache.

The name of each object and library contains a hash of its sources, headers, compiler and flags. So a changed
source rebuilds only what depends on it, and processes, instruction sets and versions share one cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from nnstretch.devices.engine.build.cpu_features import cpu_features
from nnstretch.devices.engine.build.instruction_sets import BuildTarget, Isa, local_isa
from nnstretch.devices.engine.build.toolchains import ENGINE_FOLDER, Toolchain, make_toolchain, openmp_toolchain
from nnstretch.errors import BuildError, FileError
from nnstretch.support.settings import cache_dir

JOBS = 2
_FOR_OLDEST_CPU = frozenset({"cpu_features.c", "status.c"})
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SourceFile:
    """A C file, its toolchain, and a hash of all inputs of its object."""

    path: Path
    toolchain: Toolchain
    key: str


def build_engine(isa: Isa | None = None, sanitize: str | None = None, *, openmp: bool = False) -> Path:
    """The engine's shared library, built now if the cache does not hold it.

    Args:
        isa: instruction set; default: the best of this machine.
        sanitize: "address,undefined" or "thread": build with sanitizers by the system's gcc. A process that
            loads the library must preload gcc's sanitizer library (`sanitizer_preload`).
        openmp: use OpenMP's threads instead of the engine's, for comparison; needs gcc for one file and for linking.

    Raises:
        BuildError: no compiler, or a source does not compile; names the first error and a file with the whole log.
        DeviceError: no instruction set fits this machine.
        FileError: the cache cannot be written.
    """
    isa = isa or local_isa()
    sources = engine_sources(BuildTarget(isa), sanitize)
    if not openmp:
        return build_file(isa.name, ".so", sources, make_toolchain(BuildTarget(isa), sanitize), "-shared")
    gcc = openmp_toolchain(isa)
    sources = [s for s in sources if s.path.name != "pool.c" or s.path.parent.name != "runtime"]
    sources += source_files(gcc, c_files("openmp/*.c"), ("include", "runtime"))
    return build_file(f"{isa.name}-openmp", ".so", sources, gcc, "-shared")


def engine_sources(target: BuildTarget, sanitize: str | None = None) -> list[SourceFile]:
    """The engine's C files, each with the compiler options that it needs.

    Files that run before the CPU is known are compiled for the oldest one. Kernels in files named `NAME@FEATURE.c`
    (several features: `NAME@FEATURE+FEATURE.c`) are compiled with these features; instruction sets that include all
    of them leave the file out, and so do other architectures.
    """
    sources: list[SourceFile] = []
    for path in c_files("runtime/*.c", "kernels/**/*.c"):
        features = variant_features(path)
        if features and not _is_variant_of(target.isa, features):
            continue
        oldest = path.name in _FOR_OLDEST_CPU
        toolchain = make_toolchain(target, sanitize, oldest=oldest, features=features)
        sources += source_files(toolchain, [path], ("include", "runtime", "kernels"))
    return sources


def variant_features(path: Path) -> tuple[str, ...]:
    """The CPU features that a C file's name says it requires; none for most files."""
    _, _, features = path.stem.partition("@")
    return tuple(features.split("+")) if features else ()


def _is_variant_of(isa: Isa, features: Sequence[str]) -> bool:
    known = cpu_features()
    return not isa.features.issuperset(features) and all(known[f].architecture == isa.architecture for f in features)


def c_files(*patterns: str) -> list[Path]:
    """The engine's C files that match patterns, such as `kernels/**/*.c`, sorted per pattern."""
    return [path for pattern in patterns for path in sorted(ENGINE_FOLDER.glob(pattern))]


def source_files(toolchain: Toolchain, paths: Iterable[Path], headers_in: Sequence[str]) -> list[SourceFile]:
    """C files whose objects depend on the headers of some of the engine's folders."""
    included = [
        p for folder in headers_in for p in sorted((ENGINE_FOLDER / folder).rglob("*")) if p.suffix in (".h", ".inc")
    ]
    headers = _hash(*(path.read_bytes() for path in included))
    identity = toolchain.identity.encode()
    return [
        SourceFile(path, toolchain, _hash(identity, headers.encode(), path.name.encode(), *_contents(path)))
        for path in paths
    ]


def _contents(path: Path) -> Iterator[bytes]:
    """A C file, and the one that it is a variant of and may include."""
    yield path.read_bytes()
    base = path.with_name(f"{path.stem.partition('@')[0]}.c")
    if base != path and base.exists():
        yield base.read_bytes()


def build_file(name: str, suffix: str, sources: Sequence[SourceFile], toolchain: Toolchain, *link_flags: str) -> Path:
    """A shared library or executable in the cache, built now if it is not there. Errors as for `build_engine`."""
    directory = cache_dir() / "engine"
    text = " ".join((toolchain.identity, *link_flags))
    made = directory / f"{name}-{_hash(text.encode(), *(source.key.encode() for source in sources))}{suffix}"
    if made.exists():
        return made
    cache_dir("engine/objects")
    with _locked(directory / "lock"):
        if not made.exists():
            log.info("building the native engine for %s (once per version)", name)
            _build(sources, made, toolchain.command, (*toolchain.link_flags, *link_flags))
    return made


def _build(sources: Sequence[SourceFile], product: Path, linker: Sequence[str], link_flags: Sequence[str]) -> None:
    objects = {source: product.parent / "objects" / f"{source.key}.o" for source in sources}
    with tempfile.TemporaryDirectory(dir=product.parent, prefix=".build-") as name:
        build = Path(name)

        def compile_one(item: tuple[SourceFile, Path]) -> None:
            source, made = item
            temporary = build / made.name
            command = [*source.toolchain.command, *source.toolchain.flags, "-c", str(source.path), "-o", str(temporary)]
            _compile(command, source.path.name)
            temporary.replace(made)

        with ThreadPoolExecutor(JOBS) as pool:
            list(pool.map(compile_one, [item for item in objects.items() if not item[1].exists()]))
        linked = build / product.name
        _compile([*linker, *map(str, objects.values()), "-o", str(linked), *link_flags], "linking")
        linked.replace(product)


def _compile(command: Sequence[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=_environment())
    except OSError as error:
        raise BuildError(
            f"cannot start the compiler {command[0]}: {error.strerror}; install ziglang or set NNSTRETCH_CC"
        ) from error
    if done.returncode:
        report = done.stderr + done.stdout
        file = cache_dir() / "engine" / "build.log"
        file.write_text(f"{' '.join(command)}\n{report}")
        first = next((line for line in report.splitlines() if "error:" in line), report.strip().partition("\n")[0])
        raise BuildError(f"building the engine failed at {what}: {first.strip()} (whole log in {file})")


def _environment() -> dict[str, str]:
    return {**os.environ, "LC_ALL": "C"}


def _hash(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:20]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        opened = path.open("w")
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}; set NNSTRETCH_CACHE_DIR to a writable one") from error
    with opened as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
