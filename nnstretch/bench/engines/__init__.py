"""The inference engines of a comparison: their interface, and the table of all. An engine is one file and one entry."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True)
class Job:
    """The work of an engine process: model, cores and options.

    Attributes:
        model: MODEL as the user wrote it.
        onnx: the model as an ONNX file with static shapes, or "" for a package.
        cores: the process is pinned to them and uses one thread per core.
        options: options of one engine, JSON-serialisable.
        file: the file that the engine's `prepare` wrote, or "".
    """

    model: str
    onnx: str
    cores: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""

    @property
    def onnx_path(self) -> Path:
        """The ONNX file.

        Raises:
            ValueError: there is none.
        """
        if not self.onnx:
            raise ValueError(f"{self.model} is a package, which only nnstretch can run; give the model itself")
        return Path(self.onnx)


class Engine(ABC):
    """One model loaded by one inference engine and bound to its inputs, in the way that is quickest for many runs of it.

    An engine's module has a class or function `load(job, feeds, report) -> Engine` and imports its libraries at the top, so
    that starts are timed without imports. An exception of `load` ends the process and becomes the engine's "error" in the
    results.

    An engine with a file format of its own also has `prepare(job, folder, report) -> Path`, which converts the model in a
    process that is not measured.
    """

    @abstractmethod
    def run(self) -> None:
        """Runs once and returns when the outputs are complete; this call is timed."""

    @abstractmethod
    def outputs(self) -> dict[str, np.ndarray]:
        """The outputs of the last run, by name and in the model's order."""

    def rate(self, budget: float) -> tuple[int, float]:
        """Runs inputs until `budget` seconds have passed; returns their number and the seconds they took.

        An engine with the option "streams" keeps that number of inputs in flight.
        """
        done, begin = 0, time.perf_counter()
        while not done or time.perf_counter() - begin < budget:
            self.run()
            done += 1
        return done, time.perf_counter() - begin

    def facts(self) -> dict[str, Any]:
        """Facts for the report beside latencies; JSON-serialisable."""
        return {}


@dataclass(frozen=True)
class Start:
    """Cost from a file to the first result, in a fresh process after its imports.

    Attributes:
        created_ms: time until the session, interpreter or network exists.
        ready_ms: time until the first result.
        peak_mb: peak resident memory minus the resident memory before, in 10^6 bytes.
        peak_rss_mb: peak resident memory, the interpreter and its imports included.
    """

    created_ms: float
    ready_ms: float
    peak_mb: float
    peak_rss_mb: float


@dataclass(frozen=True)
class EngineEntry:
    """An engine by name.

    Attributes:
        key: its name in `--against`.
        name: its name in results.
        module: the module with its `load`, imported in the engine process only.
        packages: top-level modules that it needs beyond the dependencies of nnstretch.
        extra: the extra of nnstretch that installs them.
        prepares: whether the module has `prepare`, called once per model or per number of threads.
        prepares_quantized: whether it is called for quantised models alone,
        prepares_rounded: and for those whose products may be rounded to bfloat16.
        from_file: whether it starts from a file; only such starts are compared.
    """

    key: str
    name: str
    module: str
    packages: tuple[str, ...] = ()
    extra: str = ""
    prepares: Literal["", "once", "threads"] = ""
    prepares_quantized: bool = False
    prepares_rounded: bool = False
    from_file: bool = True


_HERE = "nnstretch.bench.engines"

ENGINES = (
    EngineEntry("nnstretch", "nnstretch", f"{_HERE}.nnstretch_engine", prepares="threads"),
    EngineEntry("ort", "onnxruntime", f"{_HERE}.onnxruntime_engine", prepares="threads", prepares_quantized=True),
    EngineEntry(
        "openvino",
        "openvino",
        f"{_HERE}.openvino_engine",
        packages=("openvino",),
        extra="bench",
        prepares="threads",
        prepares_quantized=True,
        prepares_rounded=True,
    ),
    EngineEntry(
        "litert", "litert", f"{_HERE}.litert_engine", packages=("ai_edge_litert",), extra="bench", prepares="once"
    ),
    EngineEntry("torch", "torch", f"{_HERE}.torch_engine", packages=("torch",), extra="train", from_file=False),
    EngineEntry("ncnn", "ncnn", f"{_HERE}.ncnn_engine", packages=("ncnn", "pnnx"), extra="bench", prepares="once"),
)


def engine_entry(name: str) -> EngineEntry:
    """The engine of that name in results."""
    return next(entry for entry in ENGINES if entry.name == name)
