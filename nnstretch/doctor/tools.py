"""Programs that targets need."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

from nnstretch.devices.targets.adb import client
from nnstretch.doctor.finding import Finding, State
from nnstretch.errors import MissingExtraError

_PROGRAMS = {
    "ssh": ("targets ssh:HOST", "apt-get install openssh-client"),
    "qemu-aarch64": ("targets qemu:aarch64", "apt-get install qemu-user"),
}


def targets() -> Iterator[Finding]:
    """Clients of ssh and adb, and the emulator."""
    for program, (purpose, install) in _PROGRAMS.items():
        path = shutil.which(program) or shutil.which(f"{program}-static")
        if path is None:
            yield Finding(program, State.NOTE, f"not installed (for {purpose})", install)
        else:
            yield Finding(program, State.OK, f"{path} (for {purpose})")
    try:
        yield Finding("adb", State.OK, f"{client()} (for targets adb)")
    except MissingExtraError:
        return  # the extra's own finding says so
