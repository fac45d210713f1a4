"""Builds the native engine on first use and keeps it in the cache.

The name of each object and library contains a hash of its sources, headers, compiler and flags. So a changed
source rebuilds only what depends on it, and processes, instruction sets and versions share one cache.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nnstretch.devices.base.spec import default_cores
from nnstretch.devices.engine.build.instruction_sets import BuildTarget, Isa, cpu_features, local_features, local_isa
from nnstretch.devices.engine.build.toolchains import ENGINE_FOLDER, Toolchain, make_toolchain
from nnstretch.errors import BuildError, FileError
from nnstretch.support.locks import locked
from nnstretch.support.settings import cache_dir, caches_of_libraries, compiler_override, remove_stale
from nnstretch.support.stderr_lines import announce

# Compilers at a time, at most: each takes some 200 MB.
_MOST_JOBS = 8
# Bytes that the objects and the library of one engine need at most.
_ROOM = 10_000_000
_BUILDS = ".build-"
"""Begins the names of folders in which engines are built."""
_HEADERS_IN = ("include", "runtime", "kernels")
_INCLUDED_KERNELS = re.compile(rb'^#include "(\w+/\w+\.c)"$', re.MULTILINE)
"""A C file of kernels that another one includes."""
_FOR_OLDEST_CPU = frozenset({"cpu_features.c", "fork.c", "pieces.c", "status.c"})


Variants = Mapping[str, tuple[tuple[str, ...], ...]]
"""Family of kernels -> the lists of CPU features with which its file is compiled again."""


@dataclass(frozen=True)
class SourceFile:
    """A C file, its toolchain, and a hash of all inputs of its object."""

    path: Path
    toolchain: Toolchain
    key: str


def build_engine(isa: Isa | None = None, sanitize: str | None = None) -> Path:
    """The engine's shared library, built now if the cache does not hold it.

    Args:
        isa: instruction set, for any CPU that has it; default: the best of this machine, with those variants of kernels
            alone that its CPU takes.
        sanitize: "address,undefined" or "thread": build with sanitizers by the system's gcc. A process that
            loads the library must preload gcc's sanitizer library.

    Raises:
        BuildError: no compiler, or a source does not compile; names the first error and a file with the whole log.
        DeviceError: no instruction set fits this machine.
        FileError: the cache cannot be written.
    """
    return build_file(*_engine_of(isa, sanitize))


def engine_is_built() -> bool:
    """Whether the cache holds the engine for this machine.

    Raises:
        BuildError: there is no compiler.
        DeviceError: no instruction set fits this machine.
    """
    return _product(*_engine_of(None, None)).exists()


def _engine_of(isa: Isa | None, sanitize: str | None) -> tuple[str, str, list[SourceFile], Toolchain, str]:
    """What `build_file` makes the engine's library of."""
    target = BuildTarget(isa or local_isa())
    sources = engine_sources(target, sanitize, local_features() if isa is None else None)
    return target.isa.name, ".so", sources, make_toolchain(target, sanitize), "-shared"


@cache
def engine_identity(isa: Isa) -> str:
    """What distinguishes the engine that runners on targets have: instruction set, and hash of sources and compiler.

    Raises:
        BuildError: there is no compiler.
    """
    return f"{isa.name}-{_hash(*(source.key.encode() for source in engine_sources(BuildTarget(isa, 'linux-musl'))))}"


def engine_sources(
    target: BuildTarget, sanitize: str | None = None, cpu: Collection[str] | None = None
) -> list[SourceFile]:
    """The engine's C files, each with the compiler options that it needs.

    Files that run before the CPU is known are compiled for the oldest one. Kernels that the manifest lists with CPU
    features are compiled again with them, except for instruction sets that include all of them.

    Args:
        target: what to compile for.
        sanitize: as for `build_engine`.
        cpu: features of the CPU that the engine is for, which gets the kernels that it takes and no others; None: any CPU.
    """
    headers, listed = _hash_of_headers(_HEADERS_IN), listed_variants()
    sources: list[SourceFile] = []
    for path in c_files("runtime/**/*.c", "kernels/**/*.c"):
        for features in compiled_with(families_of(path), listed, target.isa, cpu):
            toolchain = make_toolchain(target, sanitize, oldest=path.name in _FOR_OLDEST_CPU, features=features)
            sources.append(_source_file(toolchain, path, headers))
    return sources


def engine_files(toolchain: Toolchain, paths: Iterable[Path]) -> list[SourceFile]:
    """C files that include the engine's headers; those of the engine have the keys of `engine_sources` for the toolchain."""
    return source_files(toolchain, paths, _HEADERS_IN)


def compiled_with(
    families: Collection[str], listed: Variants, isa: Isa, cpu: Collection[str] | None = None
) -> list[tuple[str, ...]]:
    """The lists of CPU features beyond an instruction set with which a C file is compiled, once with each.

    Args:
        families: that the file defines.
        listed: what `listed_variants` returns.
        isa: the instruction set.
        cpu: as for `engine_sources`.
    """
    more = (features for features in variants(families, listed) if is_variant_of(isa, features))
    found: list[tuple[str, ...]] = [(), *more]
    if cpu is None:
        return found
    # Of the variants that the CPU can run, the engine takes the first with the most features (registry.c).
    runnable = [features for features in found if set(cpu).issuperset(features)]
    granted = [features for features in runnable if not any(cpu_features()[name].must_ask for name in features)]
    wanted = [max(granted, key=len), max(runnable, key=len)]
    if not all(wanted[0] in listed.get(family, ()) for family in families):
        wanted.append(())
    return [features for features in found if features in wanted]


def variants(families: Iterable[str], listed: Variants) -> list[tuple[str, ...]]:
    """The different lists of CPU features of some families."""
    return list(dict.fromkeys(features for family in families for features in listed.get(family, ())))


def families_of(path: Path) -> list[str]:
    """The families of kernels that a C file defines."""
    return re.findall(r"^NNS_DEFINE_FAMILY\((\w+)\)", path.read_text(), re.MULTILINE)


def listed_variants() -> Variants:
    """The lists of CPU features that the manifest has for each family: VARIANTS in kernels/manifest.h."""
    found: dict[str, tuple[tuple[str, ...], ...]] = {}
    manifest = (ENGINE_FOLDER / "kernels" / "manifest.h").read_text()
    for family, features in re.findall(r"\bF\((\w+), ([\w, ]+)\)", manifest):
        found[family] = (*found.get(family, ()), tuple(features.split(", ")))
    return found


def is_variant_of(isa: Isa, features: Sequence[str]) -> bool:
    """Whether the engine for an instruction set has kernels compiled with these CPU features beside the others."""
    known = [cpu_features()[name] for name in features]
    return not isa.features.issuperset(features) and all(
        feature.architecture == isa.architecture and (feature.level or feature.block in (0, isa.block))
        for feature in known
    )


def c_files(*patterns: str) -> list[Path]:
    """The engine's C files that match patterns, such as `kernels/**/*.c`, sorted per pattern."""
    return [path for pattern in patterns for path in sorted(ENGINE_FOLDER.glob(pattern))]


def source_files(toolchain: Toolchain, paths: Iterable[Path], headers_in: Sequence[str]) -> list[SourceFile]:
    """C files whose objects depend on the headers of some of the engine's folders."""
    headers = _hash_of_headers(headers_in)
    return [_source_file(toolchain, path, headers) for path in paths]


def _hash_of_headers(folders: Sequence[str]) -> str:
    """A hash of the headers in some of the engine's folders."""
    files = [p for folder in folders for p in sorted((ENGINE_FOLDER / folder).rglob("*")) if p.suffix in (".h", ".inc")]
    return _hash(*(path.read_bytes() for path in files))


def _source_file(toolchain: Toolchain, path: Path, headers: str) -> SourceFile:
    """A C file that includes headers with a hash, and perhaps C files."""
    parts = toolchain.identity, headers, path.name
    text = path.read_bytes()
    included = [(ENGINE_FOLDER / "kernels" / name.decode()).read_bytes() for name in _INCLUDED_KERNELS.findall(text)]
    return SourceFile(path, toolchain, _hash(*(part.encode() for part in parts), text, *included))


def build_file(name: str, suffix: str, sources: Sequence[SourceFile], toolchain: Toolchain, *link_flags: str) -> Path:
    """A shared library or executable in the cache, built now if it is not there. Errors as for `build_engine`."""
    made = _product(name, suffix, sources, toolchain, *link_flags)
    if made.exists():
        return made
    cache_dir("engine/objects")
    with _locked(made.parent / "lock"):
        if not made.exists():
            announce(f"building the native engine for {name}: once per version, about a minute, kept in {made.parent}")
            _build(sources, made, toolchain.command, (*toolchain.link_flags, *link_flags))
    return made


def _product(name: str, suffix: str, sources: Sequence[SourceFile], toolchain: Toolchain, *link_flags: str) -> Path:
    """Where the cache has a library or executable, or will have it."""
    text = " ".join((toolchain.identity, *link_flags))
    key = _hash(text.encode(), *(source.key.encode() for source in sources))
    return cache_dir().absolute() / "engine" / f"{name}-{key}{suffix}"


def object_files(sources: Sequence[SourceFile]) -> list[Path]:
    """The objects of C files in the cache, compiled now if they are not there. Errors as for `build_engine`."""
    folder = cache_dir("engine/objects").absolute().parent
    with _locked(folder / "lock"):
        return _objects(sources, folder)


def _build(sources: Sequence[SourceFile], product: Path, linker: Sequence[str], link_flags: Sequence[str]) -> None:
    objects = _objects(sources, product.parent)
    with tempfile.TemporaryDirectory(dir=product.parent, prefix=_BUILDS) as name:
        linked = Path(name) / product.name
        _compile([*linker, *map(str, objects), "-o", str(linked), *link_flags], "linking")
        linked.replace(product)


def _objects(sources: Sequence[SourceFile], folder: Path) -> list[Path]:
    """The objects of C files, in their order; those that the folder does not hold are compiled now. It must be locked."""
    objects = {source: folder / "objects" / f"{source.key}.o" for source in sources}
    remove_stale(folder, prefix=_BUILDS, suffix="")
    with tempfile.TemporaryDirectory(dir=folder, prefix=_BUILDS) as name:

        def compile_one(item: tuple[SourceFile, Path]) -> None:
            source, made = item
            temporary = Path(name) / made.name
            command = [*source.toolchain.command, *source.toolchain.flags, "-c", str(source.path), "-o", str(temporary)]
            _compile(command, source.path.name)
            temporary.replace(made)

        missing = [item for item in objects.items() if not item[1].exists()]
        missing.sort(
            key=lambda item: item[0].path.stat().st_size, reverse=True
        )  # a long one that began last would end alone
        with ThreadPoolExecutor(min(_MOST_JOBS, len(default_cores()))) as pool:
            list(pool.map(compile_one, missing))
    return list(objects.values())


def _compile(command: Sequence[str], what: str) -> None:
    environment = {**caches_of_libraries(), **os.environ, "LC_ALL": "C"}
    # In a folder above its own, zig compiles its C library again, as it names files by paths from there. What NNSTRETCH_CC
    # names may be a path from the user's folder.
    folder = None if compiler_override() else cache_dir()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=folder)
    except OSError as error:
        raise BuildError(
            f"cannot start the compiler {command[0]}: {error.strerror}; install ziglang or set NNSTRETCH_CC"
        ) from error
    if done.returncode:
        report = done.stderr + done.stdout
        free = shutil.disk_usage(cache_dir()).free
        if free < _ROOM and "error:" not in report:
            raise FileError(
                f"the disk of {cache_dir()} is full: {free / 1e6:.1f} MB are free, the engine needs {_ROOM / 1e6:.0f} MB; "
                "free some space or set NNSTRETCH_CACHE_DIR to another disk"
            )
        file = cache_dir() / "engine" / "build.log"
        file.write_text(f"{' '.join(command)}\n{report}")
        first = next((line for line in report.splitlines() if "error:" in line), report.strip().partition("\n")[0])
        raise BuildError(f"building the engine failed at {what}: {first.strip()} (whole log in {file})")


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
    waiting = "another nnstretch builds the native engine; waiting for it"
    with opened as file, locked(file, lambda: announce(waiting)):
        yield
