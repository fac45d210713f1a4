"""Targets: machines that packages run on. A new target is a module with a `Target` and a line in `TARGETS`."""

from collections.abc import Callable, Mapping

from nnstretch.devices.targets.local import LocalTarget
from nnstretch.devices.targets.target import Finished, Target, TargetInfo, TransientError
from nnstretch.errors import UsageError

__all__ = ["LOCAL", "TARGETS", "Finished", "LocalTarget", "Target", "TargetInfo", "TransientError", "open_target"]

LOCAL = "local"

TARGETS: Mapping[str, Callable[[], Target]] = {LOCAL: LocalTarget}
"""Scheme -> constructor."""


def open_target(text: str = LOCAL) -> Target:
    """Opens a target by its name on the command line.

    Raises:
        UsageError: there is no such target.
    """
    if text not in TARGETS:
        raise UsageError(f"there is no target {text!r}; there are {', '.join(TARGETS)}")
    return TARGETS[text]()
