"""This machine as a board of its own: the real runner, with other times and answers, and with what goes wrong on devices."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from nnstretch.compiler.targets import site
from nnstretch.devices.engine.build.standalone import build_runner
from nnstretch.devices.targets import device
from nnstretch.devices.targets.base import Finished, OnLine, TargetError, TargetTimeoutError, TransientTargetError
from nnstretch.devices.targets.local import LocalTransport
from nnstretch.scheduler.measurement import integrated, interference

runner_file = cache(build_runner)


def shorten_measurements(patch: pytest.MonkeyPatch) -> None:
    """Attempts on targets follow each other at once; races, traces and typical layers are short."""
    patch.setattr(device, "BACK_OFF", (0.0, 0.0, 0.0))
    patch.setattr(device, "build_runner", runner_file)
    patch.setattr(site, "_TRACES", 2)
    patch.setattr(interference, "_CHAIN", ((16, 1),))
    patch.setattr(interference, "_SMALL_IMAGE", (1, 16, 8, 8))
    patch.setattr(integrated, "_AGAIN", 0)  # made-up times of layers contradict those of networks
    for name in ("LOOK", "RACE", "WHOLE", "TRACE"):
        patch.setattr(site, name, replace(getattr(site, name), runs=1, warmup=0.0))


Event = Callable[[], None]
"""Called before a measurement of the runner; may raise."""


class Board(LocalTransport):
    """A board whose runs take made-up times, by routine.

    Attributes:
        factors: routine -> its time as a multiple of a millisecond; others take one.
        wrong: routines whose outputs are zeros.
        crashing, hanging: routines that end the runner, or let it hang.
        events: number of a measurement, from 1 -> what happens before it.
        measurements: number of measurements so far.
        measured: routines of each measurement.
        is_full: whether files can no longer be stored.
        is_hot: whether clocks are lowered while the runner measures.
        joules: of a run; None if the board does not show them.
        dies_after: name of a model after whose measurement the connection is lost for good; "" for none.
    """

    system = ""

    def __init__(self, folder: Path, cpu: str) -> None:
        super().__init__()
        folder.mkdir(parents=True, exist_ok=True)
        self.name = f"ssh:{cpu}"
        self.folders = (str(folder),)
        self.factors: dict[str, float] = {}
        self.wrong: set[str] = set()
        self.crashing: set[str] = set()
        self.hanging: set[str] = set()
        self.events: dict[int, Event] = {}
        self.measurements = 0
        self.measured: list[list[str]] = []
        self.is_full = False
        self.is_hot = False
        self.joules: float | None = None
        self.dies_after = ""
        self._cpu = cpu

    def read(self, path: str) -> bytes:
        content = super().read(path)
        if path == "/proc/cpuinfo":
            lines = content.decode().splitlines()
            names = ("model name", "CPU part")
            return "\n".join(f"model name : {self._cpu}" if line.startswith(names) else line for line in lines).encode()
        return content

    def write(self, path: str, content: bytes | Path, executable: bool = False) -> None:
        if self.is_full:
            raise TargetError(f"{self.name} cannot write {path}: No space left on device; free some space there")
        super().write(path, content, executable)

    def run(self, command: Sequence[str], *, timeout: float, on_stderr: OnLine | None = None) -> Finished:
        models = [word for word in command if word.endswith(".nnm")]
        if not models or command[0] != "sh":
            return super().run(command, timeout=timeout, on_stderr=on_stderr)
        self.measurements += 1
        if event := self.events.get(self.measurements):
            event()
        if any(self.dies_after in names for names in self.measured):
            lost()
        contents = [Path(model).read_bytes() for model in models]

        def has(routines: set[str]) -> bool:
            names = [
                re.compile(rf"{re.escape(routine)}\b".encode()) for routine in routines
            ]  # not those that it begins
            return any(name.search(content) for name in names for content in contents)

        if has(self.crashing):
            return Finished(139, b"", b"Segmentation fault")
        if has(self.hanging):
            raise TargetTimeoutError("no answer")
        found = super().run(command, timeout=timeout, on_stderr=on_stderr)
        answer = json.loads(found.stdout)
        self.measured.append([entry["name"] for entry in answer["models"]])
        for number, entry in enumerate(answer["models"]):
            milliseconds = self.factors.get(entry["name"], 1.0) * (1 + number * 1e-3)
            entry["samples_ms"], entry["p50_ms"] = [milliseconds] * 3, milliseconds
            _share_out(entry.get("timeline") or [], milliseconds)
            entry["throttled"] = self.is_hot
            entry["energy_j"] = self.joules
            if entry["name"] in self.wrong and "--outputs" in command:
                file = Path(command[list(command).index("--outputs") + 1]) / f"{number}-0.bin"
                zeros = bytes(file.stat().st_size)
                file.write_bytes(zeros)
                entry["outputs"][0]["crc32"] = zlib.crc32(zeros)
        return Finished(found.status, json.dumps(answer).encode(), found.stderr)

    @property
    def left(self) -> list[str]:
        """Names of files that were left on the board."""
        return sorted(file.name for file in Path(self.folders[0]).rglob("*") if file.is_file())


def _share_out(steps: Sequence[dict[str, int]], milliseconds: float) -> None:
    """Gives all steps of a run equal parts of its time, one after another."""
    span = int(milliseconds * 1e6) // max(len(steps), 1)
    for number, step in enumerate(steps):
        step["begin"], step["end"] = number * span, (number + 1) * span


def lost() -> None:
    """The connection is lost."""
    raise TransientTargetError("the connection was lost")
