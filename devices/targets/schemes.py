"""The kinds of targets by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nnstretch.devices.targets.adb import AdbTransport
from nnstretch.devices.targets.base import OTHER_MACHINES, Transport
from nnstretch.devices.targets.device import Device
from nnstretch.devices.targets.litert import LiteRtUse
from nnstretch.devices.targets.local import LocalTransport, QemuTransport
from nnstretch.devices.targets.ssh import SshTransport
from nnstretch.errors import UsageError

TRANSPORTS: Mapping[str, Callable[[str], Transport]] = {
    "local": LocalTransport,
    "ssh": SshTransport,
    "adb": AdbTransport,
    "qemu": QemuTransport,
}
"""Scheme -> what opens a transport from the text after the colon. A new kind of target is a class and an entry here."""


def is_machine(text: str) -> bool:
    """Whether a text names a target that is reached, not only a kind of machine, as "aarch64-linux-gnu" does."""
    return text.partition(":")[0] in TRANSPORTS.keys() - {"local"}


def open_device(text: str, *, keep: bool = False, opencl: bool = False, litert: LiteRtUse | None = None) -> Device:
    """Opens a target by its name on the command line.

    Args:
        text: such as "ssh:pi@board".
        keep: leave the pushed files there.
        opencl: whether models may use OpenCL.
        litert: if models may use LiteRT.

    Raises:
        UsageError: there is no such kind of target.
        TargetError: it cannot be used.
        MissingExtraError: a program that reaches it is not installed.
    """
    scheme, _, argument = text.partition(":")
    if scheme not in TRANSPORTS:
        raise UsageError(f"there is no target {text!r}; write local or {OTHER_MACHINES}")
    return Device(TRANSPORTS[scheme](argument), keep=keep, opencl=opencl, litert=litert)
