"""Builds the shared library, the executable and the runner that run model files without Python.

All contain the engine and the loader of devices/engine/standalone, and run any model file for the same
instruction set. They are built once per target and kept in the cache.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import nnstretch
from nnstretch.devices.engine.build.engine_library import SourceFile, build_file, c_files, engine_sources, source_files
from nnstretch.devices.engine.build.instruction_sets import BuildTarget
from nnstretch.devices.engine.build.toolchains import ENGINE_FOLDER, Toolchain, make_toolchain
from nnstretch.devices.opencl.sources import source_hashes

LIBRARY = "libnnstretch.so"
HEADER = "nnstretch.h"
RUNNER = "nns-bench"
EXAMPLE = ENGINE_FOLDER / "standalone" / "example" / "example.c"
_ARRAYS = "nns_arrays.h"
_ABIS = {"aarch64": "arm64-v8a", "armv7": "armeabi-v7a", "x86_64": "x86_64", "riscv64": "riscv64"}
"""Architectures by Android's names of their ABIs."""
ANDROID_MANIFEST = """\
<manifest xmlns:android="http://schemas.android.com/apk/res/android" package="org.nnstretch.model">
    <application>
        <!-- From Android 12 on, an app opens the vendor's OpenCL library only if its manifest names it. -->
        <uses-native-library android:name="libOpenCL.so" android:required="false" />
    </application>
</manifest>
"""
"""What an app's manifest needs."""
_LOADER = ("standalone/*.c", "opencl_host/**/*.c", "litert_host/*.c")
_HASHES_IN = "sources.c"
_HEADERS_IN = ("include", "runtime", "standalone", "opencl_host", "litert_host", "programs")

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
    library = [*engine_sources(target, sanitize), *_front_sources(front, *_LOADER)]
    executable = [*library, *_front_sources(front, "standalone/cli/*.c", "programs/*.c")]
    strip = () if sanitize else ("-s",)
    return Binaries(
        build_file(f"{target}-lib", ".so", library, front, "-shared", f"-Wl,-soname,{LIBRARY}", *strip),
        build_file(f"{target}-run", "", executable, front, *_executable_flags(target, sanitize)),
    )


def build_runner(target: BuildTarget, sanitize: str | None = None) -> Path:
    """The runner `nns-bench` for a target, built now if the cache does not hold it; linked statically for musl.

    It describes a machine and times model files on it: devices/engine/runner, docs/formats.md. Arguments and errors are
    those of `build_binaries`.
    """
    front = make_toolchain(target, sanitize, oldest=True)
    define = f'-DNNS_VERSION="{nnstretch.__version__}"'
    named = replace(front, flags=(*front.flags, define), identity=f"{front.identity} {define}")
    sources = [
        *engine_sources(target, sanitize),
        *_front_sources(front, *_LOADER, "programs/*.c"),
        *source_files(named, c_files("runner/**/*.c"), (*_HEADERS_IN, "runner")),
    ]
    return build_file(f"{target}-bench", "", sources, front, *_executable_flags(target, sanitize))


def _executable_flags(target: BuildTarget, sanitize: str | None) -> tuple[str, ...]:
    strip = () if sanitize else ("-s",)
    return ("-static", _STACK, *strip) if target.system == "linux-musl" else strip


def android_files(target: BuildTarget) -> dict[str, bytes]:
    """The files of an Android archive (AAR) or library project with the shared library, by their paths in it.

    Args:
        target: of system "android".

    Raises:
        BuildError: the engine cannot be built for the target.
    """
    return {
        f"jni/{_ABIS[target.isa.architecture]}/{LIBRARY}": build_binaries(target).library.read_bytes(),
        f"include/{HEADER}": header().encode(),
        "AndroidManifest.xml": ANDROID_MANIFEST.encode(),
    }


def header() -> str:
    """The library's interface in one file: `HEADER` with the types that it shares with the engine."""
    text = (ENGINE_FOLDER / "standalone" / HEADER).read_text()
    return text.replace(f'#include "{_ARRAYS}"\n', (ENGINE_FOLDER / "include" / _ARRAYS).read_text())


def _front_sources(toolchain: Toolchain, *patterns: str) -> list[SourceFile]:
    """C files outside of the engine. One of them learns the hashes of all OpenCL kernel files."""
    sources = source_files(toolchain, c_files(*patterns), _HEADERS_IN)
    for place, source in enumerate(sources):
        if source.path.name == _HASHES_IN:
            (sources[place],) = source_files(_with_hashes(toolchain), [source.path], _HEADERS_IN)
    return sources


def _with_hashes(toolchain: Toolchain) -> Toolchain:
    hashes = "".join(f"{digest}," for digest in sorted(source_hashes().values()))
    return replace(
        toolchain,
        flags=(*toolchain.flags, f'-DNNS_OCL_TRUSTED="{hashes}"'),
        identity=f"{toolchain.identity}\n{hashes}",
    )
