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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from nnstretch.errors import BuildError, DeviceError, FileError, UsageError
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
    "-g0",  # and a debugger's knowledge of every variable, which is most of a library and a fifth of the time to compile it
)
LINK_FLAGS = ("-lpthread", "-ldl", "-lm")
SANITIZERS: Mapping[str, tuple[str, ...]] = {
    # What a bad pointer leads to is for the address sanitizer to find; checking the pointer too multiplies compile time. So do
    # checks in line, and a debugger's knowledge of every variable (-g instead of -g1).
    "address,undefined": (
        "-fno-sanitize-recover=undefined",
        "-fno-sanitize=null,object-size,pointer-overflow",
        "--param=asan-instrumentation-with-call-threshold=0",
    ),
    "thread": (),
}
"""Sanitizers, and gcc's options for them."""

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

    @property
    def architecture(self) -> str:
        """The architecture as compilers and `uname -m` write it."""
        return "aarch64" if self.name.startswith("aarch64") else "x86_64"

    @property
    def level(self) -> int:
        """The level of an x86-64 instruction set, else 0."""
        return int(self.name[-1]) if self.architecture == "x86_64" else 0

    @property
    def oldest_flags(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """`zig_flags` and `flags` for the oldest CPU of the architecture."""
        if self.architecture == "x86_64":
            return ("-mcpu=x86_64",), ("-march=x86-64",)
        return self.zig_flags, self.flags


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
class BuildTarget:
    """What machine code is built for.

    Attributes:
        isa: the instruction set.
        system: "" for the compiler's own system and C library, which run here; else "linux-gnu" or "linux-musl".
    """

    isa: Isa
    system: str = ""

    def __str__(self) -> str:
        return f"{self.isa.name}-{self.system}" if self.system else self.isa.name


SYSTEMS = ("linux-gnu", "linux-musl")
_OLDEST_GLIBC = "2.28"


def parse_target(text: str) -> BuildTarget:
    """A target as people write it: `local`, or an instruction set with `-linux-gnu` (the default) or `-linux-musl` behind it.

    Raises:
        UsageError: it is none of these.
        DeviceError: no instruction set fits this machine (`local`).
    """
    if text == "local":
        return BuildTarget(local_isa())
    for isa in ISAS:
        for system in SYSTEMS:
            if text == f"{isa.name}-{system}":
                return BuildTarget(isa, system)
        if text == isa.name:
            return BuildTarget(isa, SYSTEMS[0])
    names = ", ".join(isa.name for isa in ISAS)
    raise UsageError(
        f"unknown target {text!r}; write local, or one of {names} with -linux-gnu or -linux-musl behind it"
    )


@dataclass(frozen=True)
class Toolchain:
    """A compiler command with the flags that every file gets, and text that identifies both."""

    command: tuple[str, ...]
    flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    identity: str


@dataclass(frozen=True)
class SourceFile:
    """A C file, what compiles it, and a hash of everything that its object is made from."""

    path: Path
    toolchain: Toolchain
    key: str


def build_engine(isa: Isa | None = None, sanitize: str | None = None, *, openmp: bool = False) -> Path:
    """The engine's shared library for `isa` (this machine's by default), built now if the cache does not hold it.

    Args:
        isa: instruction set.
        sanitize: "address,undefined" or "thread" for a library that finds errors in itself, built by the system's gcc; a
            process that loads it must have gcc's sanitizer library preloaded (`sanitizer_preload`).
        openmp: put OpenMP's threads in the place of the engine's own, for comparison; needs gcc for one file and the linking.

    Raises:
        BuildError: no compiler, or a source does not compile; names the first error and a file with the whole log.
        DeviceError: no instruction set fits this machine.
        FileError: the cache cannot be written.
    """
    isa = isa or local_isa()
    toolchain = make_toolchain(BuildTarget(isa), sanitize)
    sources = engine_sources(toolchain)
    if not openmp:
        return build_file(isa.name, ".so", sources, toolchain, "-shared")
    gcc = _openmp_toolchain(isa)
    sources = [s for s in sources if s.path.name != "pool.c" or s.path.parent.name != "src"]
    sources += source_files(gcc, c_files("openmp"), ("include", "src"))
    return build_file(f"{isa.name}-openmp", ".so", sources, gcc, "-shared")


def engine_sources(toolchain: Toolchain) -> list[SourceFile]:
    """The engine's C files."""
    return source_files(toolchain, c_files("src", "kernels"), ("include", "src", "kernels"))


def c_files(*folders: str) -> list[Path]:
    """The C files of some of the engine's folders."""
    return [path for folder in folders for path in sorted((HERE / folder).glob("*.c"))]


def source_files(toolchain: Toolchain, paths: Iterable[Path], headers_in: Sequence[str]) -> list[SourceFile]:
    """C files whose objects depend on the headers of some of the engine's folders."""
    included = [p for folder in headers_in for p in sorted((HERE / folder).iterdir()) if p.suffix in (".h", ".inc")]
    headers = _hash(*(path.read_bytes() for path in included))
    identity = toolchain.identity.encode()
    return [
        SourceFile(path, toolchain, _hash(identity, headers.encode(), path.name.encode(), path.read_bytes()))
        for path in paths
    ]


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


def make_toolchain(target: BuildTarget, sanitize: str | None = None, *, oldest: bool = False) -> Toolchain:
    """The compiler for a target: the ziglang wheel's, unless NNSTRETCH_CC names one for this machine's system.

    Args:
        target: what to build for.
        sanitize: as for `build_engine`.
        oldest: compile for the oldest CPU of the architecture instead of for the instruction set, which is only named.

    Raises:
        BuildError: the compiler cannot be asked for its version.
    """
    override, isa = compiler_override(), target.isa
    folders = ("include", "src", *(("standalone",) if oldest else ()))
    defines = ("-D_GNU_SOURCE", f"-DNNS_BLOCK={isa.block}", *(f"-I{HERE / folder}" for folder in folders))
    if oldest:
        defines += (f'-DNNS_ISA="{isa.name}"', f"-DNNS_ISA_LEVEL={isa.level}")
    link: tuple[str, ...] = LINK_FLAGS
    command: tuple[str, ...]
    zig_flags, other_flags = isa.oldest_flags if oldest else (isa.zig_flags, isa.flags)
    if target.system or (sanitize is None and not override):
        command, identity = (sys.executable, "-m", "ziglang", "cc"), f"ziglang {_ziglang_version()}"
        if target.system:
            command += ("-target", _zig_triple(target))
        flags = (*FLAGS, *zig_flags)
        # zig builds its own runtime library (memset and the like) for the CPU that is named where it links.
        link += zig_flags if oldest else ()
    else:
        command = tuple(override or ["gcc"])
        identity = _output([*command, "--version"])
        flags = tuple(flag for flag in FLAGS if flag != "-fno-sanitize=undefined") + other_flags
    if sanitize is not None:
        extra = (f"-fsanitize={sanitize}", *SANITIZERS[sanitize], "-fno-omit-frame-pointer", "-g1", "-DNNS_JITTER")
        # gcc warns about code that it does not understand once it is instrumented.
        flags = (*(flag for flag in flags if flag not in ("-O3", "-Werror")), "-O1", *extra)
        link = (*link, f"-fsanitize={sanitize}")
    return _described(command, (*flags, *defines), link, f"{identity}\n{target}")


def _openmp_toolchain(isa: Isa) -> Toolchain:
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
    defines = ("-D_GNU_SOURCE", f"-DNNS_BLOCK={isa.block}", f"-I{HERE / 'include'}", f"-I{HERE / 'src'}")
    return _described(command, (*flags, *defines), LINK_FLAGS, _output([*command, "--version"]))


def _described(command: tuple[str, ...], flags: tuple[str, ...], link: tuple[str, ...], identity: str) -> Toolchain:
    text = " ".join((*command[1:], *flags, *link)).replace(str(HERE), "")
    return Toolchain(command, flags, link, f"{identity}\n{text}")


def _zig_triple(target: BuildTarget) -> str:
    glibc = f".{_OLDEST_GLIBC}" if target.system == "linux-gnu" else ""
    return f"{target.isa.architecture}-{target.system}{glibc}"


@cache
def _ziglang_version() -> str:
    return version("ziglang")


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
    try:
        opened = path.open("w")
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror}; set NNSTRETCH_CACHE_DIR to a writable one") from error
    with opened as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
