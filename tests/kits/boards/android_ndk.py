"""A stand-in for Android's NDK: its compiler is the ziglang package's, and its C library is musl.

It takes the command lines that the NDK's clang takes and refuses options that this one lacks. Its programs run under an
emulator of this machine. It compiles the engine by the command lines of `-linux-musl`: zig finds in its cache what tests of
either have compiled.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from nnstretch.devices.engine.build.toolchains import FLAGS, GCC_FLAGS, zig_cc

VERSION = "Android (stand-in of tests) clang version 19.0.1"
_CLANG = """\
#!/bin/sh
[ "$1" != --version ] || {{ echo "{version}"; exit 0; }}
echo "$@" >>"{folder}/calls"
for word in "$@"; do
  shift
  case $word in
    --target=aarch64-linux-android28) set -- "$@" -target aarch64-linux-musl -mcpu=baseline ;;
    --target=x86_64-linux-android28) set -- "$@" -target x86_64-linux-musl ;;
    -march=armv8-a) ;;
    -march=armv8-a+*)
      features=$(echo "${{word#-march=armv8-a+}}" | sed s/fp16/fullfp16/)
      set -- "$@" "-mcpu=baseline+$features" ;;
    -march=x86-64) set -- "$@" -mcpu=x86_64 ;;
    -march=x86-64-v[234]) set -- "$@" "-mcpu=x86_64_${{word#-march=x86-64-}}" ;;
    -mcpu=* | -target | --target=* | -march=*) echo "error: unknown argument '$word'" >&2; exit 1 ;;
    -lpthread) echo "error: unable to find library -lpthread" >&2; exit 1 ;;
    {first}) set -- "$@" {flags} ;;
    {others}) ;;
    *) set -- "$@" "$word" ;;
  esac
done
exec {zig} -fno-sanitize=undefined "$@"
"""


def write_ndk(folder: Path) -> Path:
    """Writes the stand-in into a folder; `calls` in it is the list of the compiler's command lines."""
    clang = folder / "toolchains" / "llvm" / "prebuilt" / "linux-x86_64" / "bin" / "clang"
    clang.parent.mkdir(parents=True)
    first, *others = GCC_FLAGS
    text = _CLANG.format(
        version=VERSION,
        folder=folder,
        first=first,
        flags=shlex.join(FLAGS),
        others="|".join(others),
        zig=shlex.join(zig_cc()),
    )
    clang.write_text(text)
    clang.chmod(0o755)
    return folder
