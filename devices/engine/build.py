"""Builds the native engine on first use and keeps it in the cache.

Objects and libraries are named after a hash of everything they are made from: sources, headers, compiler and flags. So a
changed source rebuilds what it touches, and several processes, instruction sets and versions share one cache.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from nnstretch.errors import BuildError, DeviceError
from nnstretch.settings import cache_dir, compiler_override

HERE = Path(__file__).parent
JOBS = 2
FLAGS = (
    "-O3",
    "-std=c11",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fPIC",
    "-fvisibility=hidden",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-sanitize=undefined",  # zig cc turns traps for undefined behaviour on by itself
)
LINK_FLAGS: tuple[str, ...] = ("-shared", "-lpthread", "-ldl", "-lm")
SANITIZERS = ("address,undefined", "thread")

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Isa:
    """An instruction set that the engine can be built for.

    Attributes:
        name: as in file names and packages.
        zig_flags: what selects it with the ziglang wheel's compiler.
        flags: what selects it with GCC and Clang.
        block: floats per vector, the block of the blocked layout.
        features: flags in /proc/cpuinfo that a CPU must have.
    """

    name: str
    zig_flags: tuple[str, ...]
    flags: tuple[str, ...]
    block: int
    features: frozenset[str]


_V2 = frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"})
_V3 = _V2 | {"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"}
_V4 = _V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
# Without the last flag clang splits vectors of 16 floats into halves.
_WIDE = "-mprefer-vector-width=512"

ISAS: tuple[Isa, ...] = (
    Isa("x86-64-v4", ("-mcpu=x86_64_v4", _WIDE), ("-march=x86-64-v4", _WIDE), 16, _V4),
    Isa("x86-64-v3", ("-mcpu=x86_64_v3",), ("-march=x86-64-v3",), 8, _V3),
    Isa("x86-64-v2", ("-mcpu=x86_64_v2",), ("-march=x86-64-v2",), 4, _V2),
    Isa("aarch64", ("-mcpu=baseline",), ("-march=armv8-a",), 4, frozenset({"asimd"})),
)
"""Best first for each machine."""


@cache
def local_isa() -> Isa:
    """The best instruction set of this machine.

    Raises:
        DeviceError: the CPU has none that the engine is written for.
    """
    found: set[str] = set()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            found.update(value.split())
            break
    prefix = "aarch64" if platform.machine() == "aarch64" else "x86-64"
    for isa in ISAS:
        if isa.name.startswith(prefix) and isa.features <= found:
            return isa
    names = ", ".join(isa.name for isa in ISAS)
    raise DeviceError(f"this CPU ({platform.machine()}) has none of the instruction sets {names}; use another machine")


@dataclass(frozen=True)
class _Toolchain:
    """A compiler command with the flags that every file gets, and text that identifies both."""

    command: tuple[str, ...]
    flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    identity: str


def build_engine(isa: Isa | None = None, sanitize: str | None = None, *, openmp: bool = False) -> Path:
    """The engine's shared library for `isa` (this machine's by default), built now if the cache does not hold it.

    Args:
        isa: instruction set.
        sanitize: "address,undefined" or "thread" for a library that finds errors in itself, built by the system's gcc; a
            process that loads it must have gcc's sanitizer library preloaded (`sanitizer_preload`). Its threads lose time
            at random where they meet.
        openmp: put OpenMP's threads in the place of the engine's own, for comparison; needs gcc for one file and the linking.

    Raises:
        BuildError: no compiler, or a source does not compile; names the first error and a file with the whole log.
        DeviceError: no instruction set fits this machine.
        FileError: the cache cannot be written.
    """
    isa = isa or local_isa()
    toolchain = _toolchain(isa, sanitize)
    sources = sorted(HERE.glob("src/*.c")) + sorted(HERE.glob("kernels/*.c"))
    special: dict[Path, _Toolchain] = {}
    linker = toolchain
    if openmp:
        own, theirs = HERE / "src" / "pool.c", HERE / "openmp" / "pool.c"
        sources[sources.index(own)] = theirs
        linker = special[theirs] = _openmp_toolchain(isa)
    headers = _hash(*(path.read_bytes() for path in sorted(HERE.glob("*/*.[hi]*")) if path.suffix in (".h", ".inc")))
    keys = {
        source: _hash(
            special.get(source, toolchain).identity.encode(),
            headers.encode(),
            source.name.encode(),
            source.read_bytes(),
        )
        for source in sources
    }
    directory = cache_dir() / "engine"
    library = directory / f"{isa.name}-{_hash(*(key.encode() for key in keys.values()))}.so"
    if library.exists():
        return library
    (directory / "objects").mkdir(parents=True, exist_ok=True)
    with _locked(directory / "lock"):
        if not library.exists():
            log.info("building the native engine for %s (once per version)", isa.name)
            objects = {source: directory / "objects" / f"{key}.o" for source, key in keys.items()}
            _build(lambda source: special.get(source, toolchain), linker, objects, library)
    return library


def sanitizer_preload(sanitize: str) -> str:
    """What LD_PRELOAD must hold for a process to load an engine built with `sanitize`.

    Raises:
        BuildError: gcc or its sanitizer library is not installed.
    """
    name = "libasan.so" if sanitize.startswith("address") else "libtsan.so"
    path = Path(_output(["gcc", f"-print-file-name={name}"]))
    if not path.is_absolute():
        raise BuildError(f"gcc has no {name}; install its sanitizer libraries")
    return str(path.resolve())


def _toolchain(isa: Isa, sanitize: str | None) -> _Toolchain:
    override = compiler_override()
    defines = _defines(isa)
    link = LINK_FLAGS
    command: tuple[str, ...]
    if sanitize is None and not override:
        command, identity = (sys.executable, "-m", "ziglang", "cc"), f"ziglang {_ziglang_version()}"
        flags = (*FLAGS, *isa.zig_flags)
    else:
        command = tuple(override or ["gcc"])
        identity = _output([*command, "--version"])
        flags = tuple(flag for flag in FLAGS if flag != "-fno-sanitize=undefined") + isa.flags
    if sanitize is not None:
        assert sanitize in SANITIZERS
        extra = (
            f"-fsanitize={sanitize}",
            "-fno-omit-frame-pointer",
            "-g",
            "-fno-sanitize-recover=undefined",
            "-DNNS_JITTER",
        )
        # gcc warns about code that it does not understand once it is instrumented.
        flags = (*(flag for flag in flags if flag not in ("-O3", "-Werror")), "-O1", *extra)
        link = (*link, f"-fsanitize={sanitize}")
    return _described(command, (*flags, *defines), link, identity)


def _openmp_toolchain(isa: Isa) -> _Toolchain:
    """gcc, for the file that uses OpenMP and to link it.

    Raises:
        BuildError: there is no gcc that has OpenMP.
    """
    command = ("gcc", "-fopenmp")
    try:
        library = Path(_output([*command, "-print-file-name=libgomp.so"]))
    except BuildError as error:
        raise BuildError(f"no compiler with OpenMP: {error}") from error
    if not library.is_absolute():
        raise BuildError("no compiler with OpenMP: gcc has no libgomp; install it")
    flags = tuple(flag for flag in FLAGS if flag != "-fno-sanitize=undefined") + isa.flags
    return _described(command, (*flags, *_defines(isa)), LINK_FLAGS, _output([*command, "--version"]))


def _defines(isa: Isa) -> tuple[str, ...]:
    return "-D_GNU_SOURCE", f"-DNNS_BLOCK={isa.block}", f"-I{HERE / 'include'}", f"-I{HERE / 'src'}"


def _described(
    command: tuple[str, ...], flags: tuple[str, ...], link_flags: tuple[str, ...], identity: str
) -> _Toolchain:
    text = " ".join((*command[1:], *flags, *link_flags)).replace(str(HERE), "")
    return _Toolchain(command, flags, link_flags, f"{identity}\n{text}")


@cache
def _ziglang_version() -> str:
    return version("ziglang")


def _build(
    toolchain_of: Callable[[Path], _Toolchain], linker: _Toolchain, objects: dict[Path, Path], library: Path
) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent, prefix=".build-") as name:
        build = Path(name)

        def compile_one(item: tuple[Path, Path]) -> None:
            source, made = item
            temporary = build / made.name
            toolchain = toolchain_of(source)
            _compile([*toolchain.command, *toolchain.flags, "-c", str(source), "-o", str(temporary)], source.name)
            temporary.replace(made)

        with ThreadPoolExecutor(JOBS) as pool:
            list(pool.map(compile_one, [item for item in objects.items() if not item[1].exists()]))
        linked = build / library.name
        _compile([*linker.command, *map(str, objects.values()), "-o", str(linked), *linker.link_flags], "linking")
        linked.replace(library)


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


@cache
def _output_of(command: tuple[str, ...]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(f"cannot run {' '.join(command)}: {error}; install it or set NNSTRETCH_CC") from error


def _output(command: Sequence[str]) -> str:
    return _output_of(tuple(command))


def _hash(*parts: bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()[:20]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
