"""What an answer was made with: versions of this package, of the engine and of what else took part."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

_LIBRARIES = {
    "numpy": "numpy",
    "onnxruntime": "onnxruntime",
    "torch": "torch",
    "openvino": "openvino",
    "ncnn": "ncnn",
    "ai_edge_litert": "ai-edge-litert",
    "optuna": "optuna",
}
"""Module -> its distribution."""


def with_environment(answer: Mapping[str, Any]) -> dict[str, Any]:
    """An answer and what it was made with."""
    return {**answer, "environment": environment()}


def environment() -> dict[str, Any]:
    """Versions of all that this process has loaded so far; loads nothing by itself.

    Returns:
        `nnstretch`, `python`, `system`; and as far as they are loaded `cpu`, `engine` (instruction set and hash of its build),
        `opencl` (platform and driver version per device), `libraries` (name -> version).
    """
    import nnstretch

    found: dict[str, Any] = {
        "nnstretch": nnstretch.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    }
    if "nnstretch.devices.cpu.processor" in sys.modules:
        from nnstretch.devices.cpu.processor import cpu_model

        found["cpu"] = cpu_model()
    if "nnstretch.devices.engine.binding.library" in sys.modules:
        from nnstretch.devices.engine.binding.library import engine

        if engine.cache_info().currsize:
            found["engine"] = engine().path.stem
    if "nnstretch.devices.opencl.drivers" in sys.modules:
        from nnstretch.devices.opencl.drivers import loaded_devices

        if devices := loaded_devices():
            found["opencl"] = [f"{device.platform.name} {device.driver_version}" for device in devices]
    found["libraries"] = dict(_loaded_libraries())
    return found


def _loaded_libraries() -> list[tuple[str, str]]:
    found = ((name, _version(name)) for module, name in _LIBRARIES.items() if module in sys.modules)
    return [(name, number) for name, number in found if number]


@cache
def _version(name: str) -> str:
    """The version of a distribution; "" if it has none, such as a torch that was built by hand."""
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
