"""What a benchmark wants of an engine."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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
    """

    model: str
    onnx: str
    cores: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)

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

    An engine's module has a function `load(job, feeds, report) -> Engine`. Whatever it raises ends its process and
    becomes the engine's "error" in the results.
    """

    @abstractmethod
    def run(self) -> None:
        """Runs once, and returns when the outputs are there. This is what is timed."""

    @abstractmethod
    def outputs(self) -> dict[str, np.ndarray]:
        """The outputs of the last run, by name and in the model's order."""

    def facts(self) -> dict[str, Any]:
        """What is worth telling beside latencies; JSON-serialisable."""
        return {}


@dataclass(frozen=True)
class EngineEntry:
    """An engine by name.

    Attributes:
        key: as `--against` takes it.
        name: as results call it.
        module: which module has its `load`; imported in the engine's process only.
    """

    key: str
    name: str
    module: str
