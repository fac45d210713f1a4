"""All checks in the order in which a reader mends what they find."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from nnstretch.doctor.finding import Check, Finding, State
from nnstretch.support.interrupts import check_interrupted
from nnstretch.support.progress import Progress, silent

CHECKS: Mapping[str, str] = {
    "Python": "software.python",
    "packages": "software.packages",
    "cache": "software.cache",
    "engine": "native.native_engine",
    "OpenCL": "accelerators.opencl",
    "OpenCL loader": "accelerators.opencl_loader",
    "torch": "accelerators.torch",
    "torchvision": "accelerators.torchvision",
    "cores": "machine.cores",
    "memory": "machine.memory",
    "steadiness": "machine.steadiness",
    "targets": "tools.targets",
}
"""What is looked at -> MODULE.FUNCTION of the check. Modules are loaded one by one, because what they import may be missing."""


def diagnose(progress: Progress = silent) -> list[Finding]:
    """What all checks find."""
    found: list[Finding] = []
    for done, (what, place) in enumerate(CHECKS.items()):
        progress(done, len(CHECKS), what)
        module, name = place.split(".")
        try:
            check: Check = getattr(import_module(f"nnstretch.doctor.{module}"), name)
        except ImportError as error:
            check_interrupted()
            remedy = "pip install --upgrade --force-reinstall nnstretch"
            found.append(Finding(what, State.PROBLEM, f"cannot be checked: {error}", remedy))
            continue
        found += check()
        check_interrupted()
    return found
