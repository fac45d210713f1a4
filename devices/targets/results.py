"""What the runner is asked for, and its answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Self

import numpy as np

from nnstretch.devices.base.routine import PLAIN
from nnstretch.devices.targets.base import TargetError
from nnstretch.devices.targets.probe import Probe
from nnstretch.graph.layer import TensorType
from nnstretch.support.json_text import DAMAGED


@dataclass(frozen=True)
class BenchOptions:
    """How the runner measures.

    Attributes:
        seconds: measuring time per model.
        runs: exactly this number of timed runs instead.
        warmup: seconds of runs before.
        threads: CPU threads of a model; None: as compiled.
        seed: of inputs that no file gives, and of the order of turns.
        minutes: of a sustained run instead; None: no sustained run.
        cool_down: seconds between models.
        cool_to: degrees Celsius that every CPU sensor must fall to between models.
        hottest: degrees Celsius at which the runner pauses or stops; None: no limit.
        when_hot: "pause" or "stop".
        timeline: whether each model has one traced run.
        patience: seconds beyond the planned ones after which the runner counts as hung.
    """

    seconds: float = 3.0
    runs: int | None = None
    warmup: float = 0.5
    threads: int | None = None
    seed: int = 0
    minutes: float | None = None
    cool_down: float | None = None
    cool_to: float | None = None
    hottest: float | None = None
    when_hot: str = "pause"
    timeline: bool = False
    patience: float = 300.0

    def arguments(self) -> list[str]:
        """The options of the runner's command line."""
        words = ["--progress", "--seed", str(self.seed), "--warmup", f"{self.warmup:g}"]
        words += ["--seconds", f"{self.seconds:g}"] if self.runs is None else ["--runs", str(self.runs)]
        for name, value in (
            ("threads", self.threads),
            ("minutes", self.minutes),
            ("cool-down", self.cool_down),
            ("cool-to", self.cool_to),
            ("hottest", self.hottest),
        ):
            if value is not None:
                words += [f"--{name}", f"{value:g}"]
        if self.hottest is not None:
            words += ["--when-hot", self.when_hot]
        return [*words, *(["--timeline"] if self.timeline else [])]

    def timeout(self, models: int) -> float:
        """Seconds that a measurement of some models may take."""
        timed = 3 * self.seconds if self.runs is None else self.runs * _LONGEST_RUN
        sustained = (self.minutes or 0.0) * 60
        cooling = (self.cool_down or 0.0) + (_LONGEST_COOLING if self.cool_to is not None else 0.0)
        paused = 0.0 if self.hottest is None else _LONGEST_PAUSE + _MOST_PAUSES * sustained
        parts = timed, 3 * self.warmup, _WATCHED * sustained, cooling, paused, _LOADING
        return self.patience + models * sum(parts)


_LOADING = 10.0
"""Seconds that a model may take to load and to run once, traced and untraced."""
_LONGEST_RUN = 120.0
"""Seconds that one of a stated number of runs may take."""
_LONGEST_COOLING, _LONGEST_PAUSE = 600.0, 1200.0
_MOST_PAUSES = 10
"""Pauses of a sustained run that keeps below a temperature, over its runs."""
_WATCHED = 1.1
"""Time of a sustained run over that of its runs: clocks and temperatures are read between them."""


@dataclass(frozen=True)
class Second:
    """One second of a sustained run."""

    s: float
    p50_ms: float | None = None
    khz: int | None = None
    temperature_c: float | None = None


@dataclass(frozen=True)
class ModelResult:
    """One model's measurement; None where the device does not say.

    Attributes:
        file: as the runner was given it.
        name: the model's.
        error: why it could not be measured; all times are None then.
        threads: CPU threads.
        features: CPU features beyond the instruction set that its kernels use.
        load_ms, first_ms: loading, and the first run.
        runs: number of timed runs.
        p50_ms, p90_ms, p99_ms, min_ms, mean_ms: of the runs.
        peak_memory_bytes: of the process.
        clocks_khz: CPU -> clock before and after the runs.
        temperatures_c: sensor -> degrees Celsius before and after the runs.
        throttled: whether clocks were lowered.
        energy_j: joules per run.
        sustained: the seconds of a sustained run.
        timeline: steps of the traced run, as the runner writes them.
        raw: the runner's JSON.
    """

    file: str
    name: str = ""
    error: str | None = None
    threads: int | None = None
    features: str = ""
    load_ms: float | None = None
    first_ms: float | None = None
    runs: int | None = None
    p50_ms: float | None = None
    p90_ms: float | None = None
    p99_ms: float | None = None
    min_ms: float | None = None
    mean_ms: float | None = None
    peak_memory_bytes: int | None = None
    clocks_khz: Mapping[str, Sequence[int | None]] | None = None
    temperatures_c: Mapping[str, Sequence[float | None]] | None = None
    throttled: bool | None = None
    energy_j: float | None = None
    sustained: tuple[Second, ...] = ()
    timeline: Sequence[Mapping[str, Any]] | None = None
    raw: Mapping[str, Any] | None = None

    @classmethod
    def from_json(cls, entry: Mapping[str, Any]) -> Self:
        """An entry of the runner's "models"."""
        known = {f.name: entry[f.name] for f in fields(cls) if f.name in entry}
        seconds = tuple(
            Second(**{f.name: one[f.name] for f in fields(Second) if f.name in one})
            for one in entry.get("sustained") or ()
        )
        return cls(**{**known, "sustained": seconds, "raw": entry})

    @property
    def outputs(self) -> Sequence[Mapping[str, Any]]:
        """What is known of the outputs, in the model's order; nothing if the model failed."""
        return () if self.error is not None else (self.raw or {}).get("outputs", ())

    @property
    def samples(self) -> tuple[float, ...]:
        """Seconds of the runs, or of some of them, evenly chosen."""
        return tuple(ms * 1e-3 for ms in (self.raw or {}).get("samples_ms", ()))

    @property
    def hottest_c(self) -> float | None:
        """The highest temperature of all sensors."""
        found = [c for pair in (self.temperatures_c or {}).values() for c in pair if c is not None]
        return max(found, default=None)

    @property
    def highest_khz(self) -> int | None:
        """The highest clock after the runs."""
        found = [pair[-1] for pair in (self.clocks_khz or {}).values() if pair and pair[-1] is not None]
        return max(found, default=None)


@dataclass(frozen=True)
class BenchResult:
    """The runner's answer.

    Attributes:
        models: in the order in which they were given.
        stopped: why it ended early; None if it did not.
        probe: what the device is.
    """

    models: tuple[ModelResult, ...]
    stopped: str | None
    probe: Probe


def parse_result(output: bytes, target: str) -> BenchResult:
    """The answer in a runner's output.

    Raises:
        TargetError: it is none.
    """
    try:
        answer = json.loads(output)
        return BenchResult(
            tuple(ModelResult.from_json(entry) for entry in answer["models"]),
            answer.get("stopped"),
            Probe.from_json(answer["device"]),
        )
    except DAMAGED as error:
        raise TargetError(f"{target}: the runner's answer is not understood ({error!r}): {output[:80]!r}") from error


def arrays_of(raw: Iterable[bytes], types: Sequence[TensorType], model: str) -> list[np.ndarray]:
    """The outputs of a run, as the runner writes them, as arrays; those of bfloat16 hold its bits.

    Args:
        raw: the contents of the outputs.
        types: of the outputs.
        model: named in errors.

    Raises:
        TargetError: they have other sizes.
    """
    contents = list(raw)
    if [len(content) for content in contents] != [PLAIN.bytes(tensor) for tensor in types]:
        raise TargetError(f"the runner's outputs of {model} have other sizes than those of the model")
    return [
        np.frombuffer(content, tensor.element.storage).reshape(tensor.shape)
        for content, tensor in zip(contents, types, strict=True)
    ]
