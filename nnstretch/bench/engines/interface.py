"""What a benchmark wants of an engine."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

Report = Callable[[int, int, str], None]
"""Told (done, total, what) while an engine gets ready."""


@dataclass(frozen=True)
class Job:
    """What an engine shall run, and where. All that a process of an engine is told.

    Attributes:
        model: MODEL as the user wrote it.
        onnx: the same model as an ONNX file with static shapes, or "" if there is none (a package).
        cores: the process is pinned to them, and uses as many threads.
        options: what one engine wants beyond that, JSON-serialisable.
        file: what the engine's `prepare` has made, or "".
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
    """One model loaded by one inference engine and bound to its inputs.

    An engine's module has a function `load(job, feeds, report) -> Engine`, and imports all that this needs when it is
    imported itself, so that a start can be timed without imports. Whatever `load` raises ends its process and becomes the
    engine's "error" in the results.

    An engine that reads files of its own format also has `prepare(job, folder, report) -> Path`, which makes such a file in
    a process that is not measured.
    """

    @abstractmethod
    def run(self) -> None:
        """Runs once, and returns when the outputs are there. This is what is timed."""

    @abstractmethod
    def outputs(self) -> dict[str, np.ndarray]:
        """The outputs of the last run, by name and in the model's order."""

    def rate(self, budget: float) -> tuple[int, float]:
        """Runs until `budget` seconds have passed, one input after another; how many there were and what they took.

        Engines that have been told to have several inputs on their way run so many at a time.
        """
        done, begin = 0, time.perf_counter()
        while not done or time.perf_counter() - begin < budget:
            self.run()
            done += 1
        return done, time.perf_counter() - begin

    def facts(self) -> dict[str, Any]:
        """What is worth telling beside latencies; JSON-serialisable."""
        return {}


@dataclass(frozen=True)
class Start:
    """What the way from a file to the first result costs in a fresh process whose imports are done.

    Attributes:
        created_ms: until the session, interpreter or network is there.
        ready_ms: until the first result is there too.
        peak_mb: the largest resident memory on this way, less what was resident before it, in units of 10^6 bytes.
        peak_rss_mb: the same with what was resident before (the interpreter and its imports).
    """

    created_ms: float
    ready_ms: float
    peak_mb: float
    peak_rss_mb: float


@dataclass(frozen=True)
class EngineEntry:
    """An engine by name.

    Attributes:
        key: as `--against` takes it.
        name: as results call it.
        module: which module has its `load`; imported in the engine's process only.
        packages: top-level modules that it needs beyond those of nnstretch itself.
        extra: of nnstretch that brings them.
        prepares: whether the module has `prepare`, and how often: once per model, or for every number of threads.
        from_file: whether it starts from a file, so that its start can be compared.
    """

    key: str
    name: str
    module: str
    packages: tuple[str, ...] = ()
    extra: str = ""
    prepares: Literal["", "once", "threads"] = ""
    from_file: bool = True
