"""The CPU that a plan was tuned on: saved plans and packages have it, and say so where they run on another one."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nnstretch.devices.cpu.processor import cpu_model
from nnstretch.scheduler.plan.schema import Plan

_KEY = "cpu"

log = logging.getLogger(__name__)


def to_metadata(cpu: str) -> dict[str, str]:
    """The name of a CPU as metadata of a package; none for an empty name."""
    return {_KEY: cpu} if cpu else {}


def metadata_of_plan(plan: Plan) -> dict[str, str]:
    """Metadata of a package of a plan that was made here; none if it was not tuned."""
    return to_metadata("" if plan.predicted_ms is None else cpu_model())


def warn_of_package(path: str | Path, metadata: Mapping[str, Any]) -> None:
    """Warns if a package was tuned on another CPU than this machine's."""
    warn_of_other_cpu(path, str(metadata.get(_KEY, "")), "nnstretch compile")


def warn_of_other_cpu(path: str | Path, cpu: str, command: str) -> None:
    """Warns if a file was tuned on another CPU than this machine's: other routines may be faster here.

    Args:
        path: the file.
        cpu: name of the CPU; empty if it is not known.
        command: writes the file again.
    """
    here = cpu_model()
    if cpu not in ("", here):
        log.warning(
            "%s was tuned on %s, and this machine has %s; `%s` here may give a faster one", path, cpu, here, command
        )
