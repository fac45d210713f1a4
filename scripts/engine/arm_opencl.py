"""Unpacks an OpenCL driver for 64-bit ARM, by which `--target qemu:aarch64` has an OpenCL device.

Debian's PoCL with all that it needs (85 MB, 470 MB unpacked) is downloaded from the sources of this machine's apt, without
root, and the last line says what to type. PoCL starts a linker for every kernel; a script in the folder's `bin` starts that of
ARM in the emulator. Kernels take seconds to build there.

    .venv/bin/python scripts/engine/arm_opencl.py FOLDER
    . FOLDER/environment && nnstretch devices --target qemu:aarch64:max,sve=off
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nnstretch.cli.console import exit_status, print_answer, script_parser
from nnstretch.errors import FileError, UsageError

PACKAGES = "pocl-opencl-icd", "ocl-icd-libopencl1"
_APT = """\
Dir::State "{folder}/apt/state";
Dir::State::status "{folder}/apt/status";
Dir::Cache "{folder}/apt/cache";
APT::Architecture "arm64";
APT::Architectures {{ "arm64"; }};
APT::Sandbox::User "";
"""
"""Settings of apt that leave the packages of this machine alone."""
_LINKER = """\
#!/bin/sh
unset QEMU_SET_ENV
exec {emulator} -L {root} -E LD_LIBRARY_PATH={libraries} {root}/usr/bin/aarch64-linux-gnu-ld "$@"
"""
_ENVIRONMENT = """\
export PATH={folder}/bin:$PATH
export QEMU_LD_PREFIX={root}
export QEMU_SET_ENV=LD_LIBRARY_PATH={libraries}
export OCL_ICD_VENDORS={root}/etc/OpenCL/vendors
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Downloads and unpacks; returns the exit status."""
    parser = script_parser(__doc__)
    parser.add_argument("folder", type=Path, help="where the driver is unpacked")
    options = parser.parse_args(arguments)
    return exit_status(lambda: run(options))


def run(options: argparse.Namespace) -> None:
    """Makes the folder.

    Raises:
        UsageError: a program is missing, or the folder has files.
        FileError: packages cannot be downloaded or unpacked.
    """
    folder = options.folder.resolve()
    emulator = _found("qemu-aarch64-static", "qemu-user-static")
    for program in ("apt-get", "dpkg-deb"):
        _found(program, "apt and dpkg, on Debian or Ubuntu")
    if folder.exists() and any(folder.iterdir()):
        raise UsageError(f"{folder} has files; name a new folder")
    for package in downloaded(folder):
        _run(["dpkg-deb", "-x", str(package), str(folder / "root")])
    shutil.rmtree(folder / "apt")
    values = {"folder": folder, "root": folder / "root", "emulator": emulator, "libraries": _libraries(folder / "root")}
    linker = folder / "bin" / "ld"
    linker.parent.mkdir()
    linker.write_text(_LINKER.format(**values))
    linker.chmod(0o755)
    environment = folder / "environment"
    environment.write_text(_ENVIRONMENT.format(**values))
    print_answer({"environment": str(environment)}, _show, as_json=options.json)


def downloaded(folder: Path) -> list[Path]:
    """The packages' files, in a folder that is made. Raises FileError if they cannot be had."""
    apt = folder / "apt"
    for part in ("state/lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True)
    (apt / "status").touch()
    settings = apt / "apt.conf"
    settings.write_text(_APT.format(folder=folder))
    environment = {**os.environ, "APT_CONFIG": str(settings)}
    _run(["apt-get", "update"], environment)
    _run(["apt-get", "install", "-y", "--download-only", "--no-install-recommends", *PACKAGES], environment)
    return sorted((apt / "cache" / "archives").glob("*.deb"))


def _libraries(root: Path) -> str:
    return ":".join(str(root / place / "aarch64-linux-gnu") for place in ("usr/lib", "lib"))


def _found(program: str, package: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise UsageError(f"{program} is not there; install {package}")
    return found


def _run(command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = done.stderr.splitlines() or [f"status {done.returncode}"]
        why = next((line for line in lines if line.startswith("E:")), lines[0])
        raise FileError(f"{' '.join(command[:2])} failed: {why}; check the network and apt's sources")


def _show(answer: dict[str, Any]) -> None:
    print(f". {answer['environment']} && nnstretch devices --target qemu:aarch64:max,sve=off")


if __name__ == "__main__":
    raise SystemExit(main())
