"""Python, the installed packages and the cache. Imports only what Python has, as far as possible: the rest may be missing."""

from __future__ import annotations

import importlib.metadata
import platform
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from tempfile import TemporaryFile

from packaging.requirements import Requirement

from nnstretch.doctor.finding import Finding, State
from nnstretch.errors import NNStretchError
from nnstretch.support.settings import cache_dir

PACKAGE = "nnstretch"
PURPOSES: Mapping[str, str] = {
    "train": "torch modules, the zoo, stretch and train",
    "tune": "tune --search learned, fewer measurements in stretch",
    "sweep": "sweep and reports of studies",
    "data": "quantize and evaluate of ONNX files on images without torch",
    "bench": "bench --against openvino, litert, ncnn",
    "litert": "LiteRT as a processor",
    "adb": "targets adb",
    "detection": "mAP of detectors",
    "report": "charts as PNG",
    "tensorboard": "curves of a training's run folder",
    "auto": "sweep --sampler auto",
    "grpc": "studies behind a storage proxy, grpc://HOST:PORT",
}
"""Extra -> what it is for, the most used first; not those for work on the project itself."""
_LEAST_ROOM = 1 << 30  # bytes; the engine, OpenCL programs and profiles of some dozen models take less


def python() -> Iterator[Finding]:
    """The interpreter and this package."""
    version = importlib.metadata.version(PACKAGE)
    yield Finding("Python", State.OK, f"{platform.python_version()} ({sys.executable}), {PACKAGE} {version}")


def packages() -> Iterator[Finding]:
    """Libraries that this package requires, and those of its extras."""
    wanted = [Requirement(text) for text in importlib.metadata.requires(PACKAGE) or ()]
    yield from _required(_lacking(wanted, ""))
    for extra, purpose in PURPOSES.items():
        lacking = _lacking(wanted, extra)
        if lacking:
            install = f"pip install '{PACKAGE}[{extra}]'"
            yield Finding(f"extra {extra}", State.NOTE, f"{', '.join(lacking)} (for {purpose})", install)
        else:
            yield Finding(f"extra {extra}", State.OK, f"installed (for {purpose})")


def _required(lacking: list[str]) -> Iterator[Finding]:
    if lacking:
        yield Finding("packages", State.PROBLEM, ", ".join(lacking), f"pip install --upgrade {PACKAGE}")
    else:
        yield Finding("packages", State.OK, "all that are required, in versions that fit")


def _lacking(requirements: Iterable[Requirement], extra: str) -> list[str]:
    """What is missing or has another version than wanted, one text each; of an extra only what it adds."""
    found = []
    for requirement in requirements:
        marker = requirement.marker
        applies = marker is None or marker.evaluate({"extra": extra})
        if not applies or (extra and (marker is None or marker.evaluate({"extra": ""}))):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            found.append(f"{requirement.name} is {version}, wanted {requirement.specifier}")
    return found


def cache() -> Iterator[Finding]:
    """The folder of the engine, of OpenCL programs and of the profile store: written to, and with free space."""
    try:
        folder = cache_dir()
        with TemporaryFile(dir=folder) as file:
            file.write(bytes(1 << 16))
        free = shutil.disk_usage(folder).free
    except (NNStretchError, OSError) as error:
        yield Finding("cache", State.PROBLEM, str(error), "set NNSTRETCH_CACHE_DIR to a writable folder")
        return
    state = State.OK if free >= _LEAST_ROOM else State.NOTE
    remedy = "" if state is State.OK else "free some space, or set NNSTRETCH_CACHE_DIR to another disk"
    yield Finding("cache", state, f"{folder}, {free / 1e9:.1f} GB free", remedy)
