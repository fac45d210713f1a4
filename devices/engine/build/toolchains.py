"""Compilers and flags for each target."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from nnstretch.devices.engine.build.instruction_sets import BuildTarget
from nnstretch.errors import BuildError
from nnstretch.support.settings import android_ndk, compiler_override

ENGINE_FOLDER = Path(__file__).parents[1]
"""The folder of the engine's C sources."""

_NO_TRAPS = "-fno-sanitize=undefined"
_NO_RUNTIME = ("-rtlib=none", "-Wl,-z,defs")
"""Nothing is taken of zig's runtime library, which the first link on a machine would compile for 8 s."""
_NO_SLP = "-fno-slp-vectorize"
"""Kernels are written with vectors; to look for more of them in straight code takes up to 40 % of a file's compile time."""
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
    _NO_SLP,
    _NO_TRAPS,  # zig cc enables traps for undefined behaviour by default,
    "-g0",  # and debug information: most of a library's size and a fifth of its compile time
)
# Other compilers and versions warn of what this one does not.
GCC_FLAGS = tuple(flag for flag in FLAGS if flag not in (_NO_TRAPS, _NO_SLP, "-Werror"))
LINK_FLAGS = ("-lpthread", "-ldl", "-lm")
SANITIZERS: Mapping[str, tuple[str, ...]] = {
    # The address sanitizer finds the consequences of bad pointers. Checks of the pointers multiply compile
    # time; so do inline checks, and full debug information (-g instead of -g1).
    "address,undefined": (
        "-fno-sanitize-recover=undefined",
        "-fno-sanitize=null,object-size,pointer-overflow",
        "--param=asan-instrumentation-with-call-threshold=0",
        # Passes that take long on unrolled code and gain little there: a third of the compile time.
        *(
            "-fno-move-loop-invariants",
            "-fno-tree-pta",
            "-fno-tree-dominator-opts",
            "-fno-dce",
            "-fno-forward-propagate",
        ),
    ),
    "thread": (),
}
"""Sanitizers, and gcc's options for them."""

_OLDEST_GLIBC = "2.28"
_ANDROID_LEVEL = 28
"""Android 9, the first whose C library has aligned_alloc."""
_ANDROID_LEVELS = {"riscv64": 35}
"""The first level with an architecture, where that is later."""
_ANDROID_LINK_FLAGS = ("-ldl", "-lm", "-Wl,-z,max-page-size=16384")
"""Threads are in Android's C library. Android 15 has pages of 16 KiB on some devices."""


@dataclass(frozen=True)
class Toolchain:
    """A compiler command, its flags for compiling and linking, and a text that identifies all of them."""

    command: tuple[str, ...]
    flags: tuple[str, ...]
    link_flags: tuple[str, ...]
    identity: str


_FOLDERS_BESIDE = ("standalone", "opencl_host", "litert_host", "programs", "runner")
"""Folders with headers of what is built around the engine."""


def make_toolchain(
    target: BuildTarget, sanitize: str | None = None, *, oldest: bool = False, features: Sequence[str] = ()
) -> Toolchain:
    """The compiler for a target.

    For Android it is the NDK's; else the ziglang wheel's, unless NNSTRETCH_CC names one for this machine's system.

    Args:
        target: what to build for.
        sanitize: as for `build_engine`.
        oldest: compile for the oldest CPU of the architecture; the code only learns the name of the instruction set.
        features: CPU features that the code may use beyond the instruction set.

    Raises:
        BuildError: the compiler cannot be asked for its version, or there is no NDK.
    """
    override, isa = compiler_override(), target.isa.with_features(features)
    folders = ("include", "runtime", "kernels", *(_FOLDERS_BESIDE if oldest else ()))
    defines = ("-D_GNU_SOURCE", f"-DNNS_BLOCK={isa.block}", *(f"-I{ENGINE_FOLDER / folder}" for folder in folders))
    if features:
        required = "|".join(f"NNS_CPU({name})" for name in features)
        defines += (f"-DNNS_VARIANT=_{features[0]}", f"-DNNS_REQUIRES={required}")
    if oldest:
        defines += (f'-DNNS_ISA="{isa.name}"', f"-DNNS_ISA_LEVEL={isa.level}")
    link: tuple[str, ...] = LINK_FLAGS
    command: tuple[str, ...]
    zig_flags, other_flags = isa.oldest_flags if oldest else (isa.zig_flags, isa.flags)
    if target.system == "android":
        command = (clang_of_ndk(), f"--target={_android_triple(target)}")
        identity = output([command[0], "--version"])
        flags = GCC_FLAGS + other_flags
        link = _ANDROID_LINK_FLAGS
    elif target.system or (sanitize is None and not override):
        command, identity = zig_cc(), f"ziglang {_ziglang_version()}"
        if target.system:
            command += ("-target", _zig_triple(target))
        flags = (*FLAGS, *zig_flags)
        # Without this flag, the first link on a machine compiles zig's runtime of the sanitizer for 14 s.
        link += (_NO_TRAPS,)
        if target.system == "linux-musl" or isa.architecture == "armv7":
            # zig compiles its runtime library (memset, division and others) for the CPU in the link flags.
            link += zig_flags if oldest else ()
        else:
            link += _NO_RUNTIME
    else:
        command = tuple(override or ["gcc"])
        identity = output([*command, "--version"])
        flags = GCC_FLAGS + other_flags
    if sanitize is not None:
        extra = (f"-fsanitize={sanitize}", *SANITIZERS[sanitize], "-fno-omit-frame-pointer", "-g1", "-DNNS_SANITIZED")
        # gcc gives false warnings about instrumented code.
        flags = (*(flag for flag in flags if flag not in ("-O3", "-Werror")), "-O1", *extra)
        link = (*link, f"-fsanitize={sanitize}")
    return described(command, (*flags, *defines), link, f"{identity}\n{target}")


def clang_of_ndk() -> str:
    """The compiler of Android's NDK.

    Raises:
        BuildError: ANDROID_NDK_HOME names no NDK.
    """
    folder = android_ndk()
    if folder is None:
        raise BuildError(
            "programs for Android are built by its NDK: install it (developer.android.com/ndk) and set ANDROID_NDK_HOME to its "
            "folder; without it, -linux-musl makes programs that run on Android, with CPU cores alone"
        )
    found = sorted(folder.glob("toolchains/llvm/prebuilt/*/bin/clang"))
    if not found:
        raise BuildError(
            f"ANDROID_NDK_HOME names {folder}, which has no toolchains/llvm/prebuilt/*/bin/clang; name the folder of an NDK, "
            "such as …/Android/Sdk/ndk/27.2.12479018"
        )
    return str(found[0])


def described(command: tuple[str, ...], flags: tuple[str, ...], link: tuple[str, ...], identity: str) -> Toolchain:
    """A toolchain whose identity names the compiler and all flags, without the place of the sources."""
    text = " ".join((*command[1:], *flags, *link)).replace(str(ENGINE_FOLDER), "")
    return Toolchain(command, flags, link, f"{identity}\n{text}")


def _android_triple(target: BuildTarget) -> str:
    architecture = target.isa.architecture
    level = _ANDROID_LEVELS.get(architecture, _ANDROID_LEVEL)
    return f"armv7a-linux-androideabi{level}" if architecture == "armv7" else f"{architecture}-linux-android{level}"


def _zig_triple(target: BuildTarget) -> str:
    glibc = f".{_OLDEST_GLIBC}" if target.system == "linux-gnu" else ""
    if target.isa.architecture == "armv7":
        return f"arm-{target.system}eabihf{glibc}"  # floats are passed in registers
    return f"{target.isa.architecture}-{target.system}{glibc}"


@cache
def zig_cc() -> tuple[str, ...]:
    """The C compiler of the ziglang wheel: its program, as its module starts a Python for every file that is compiled."""
    found = find_spec("ziglang")
    program = Path(found.origin).with_name("zig") if found and found.origin else None
    return (str(program), "cc") if program and program.exists() else (sys.executable, "-m", "ziglang", "cc")


@cache
def _ziglang_version() -> str:
    return version("ziglang")


@cache
def _cached_output(command: tuple[str, ...]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(f"cannot run {' '.join(command)}: {error}; install it or set NNSTRETCH_CC") from error


def output(command: Sequence[str]) -> str:
    """What a compiler prints.

    Raises:
        BuildError: it cannot be started or fails.
    """
    return _cached_output(tuple(command))
