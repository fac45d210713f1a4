"""What `nnstretch run` is asked to do, on this machine or on a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.cli.options import parse_assignments
from nnstretch.cli.running.images import ImageRequest
from nnstretch.support.words import counted

if TYPE_CHECKING:
    import numpy as np

    from nnstretch.scheduler.plan.schema import Plan

DEFAULT_RUNS = 50
DEFAULT_SECONDS = 2.0
"""Timed runs where nobody says how many, and the seconds after which no further one of these begins here."""

_ERRORS_OF_OUTPUTS = 5.0
"""Largest error of outputs that --check allows, in multiples of the error that each routine may have."""


def parse_inputs(texts: list[str]) -> dict[str, str]:
    """The files of `--input` by the names of inputs; a single one without a name has the name "".

    Raises:
        UsageError: a text is not understood.
    """
    if len(texts) == 1 and texts[0].endswith(".npy") and "=" not in texts[0]:
        return {"": texts[0]}
    return parse_assignments(texts, "--input", "NAME=FILE.npy, or --image FILE for a picture")


@dataclass(frozen=True)
class RunRequest:
    """How a model is run.

    Attributes:
        inputs: .npy files by the names of inputs, "" for the only one; all are random if empty.
        image: the image that the network reads, instead of `inputs`.
        output: where the outputs are written (.npz) or drawn on the image, if anywhere.
        runs: number of timed runs; None: `DEFAULT_RUNS`, as far as they begin within `DEFAULT_SECONDS`.
        timeline: where a trace of one run is written, if anywhere.
        tolerance: largest error that each routine may have, relative to its output's range.
        max_error: largest error of the outputs, relative to their range; None: what tolerance and plan explain.
        seed: of random inputs.
        litert_library: LiteRT's library for a target; None: the one that is there.
        package: where the rebalanced plan is written, if anywhere.
    """

    inputs: Mapping[str, str]
    image: ImageRequest | None
    output: Path | None
    runs: int | None
    timeline: Path | None
    tolerance: float
    max_error: float | None
    seed: int
    litert_library: Path | None = None
    package: Path | None = None

    @property
    def most_runs(self) -> int:
        """Number of timed runs, unless the time is up before."""
        return DEFAULT_RUNS if self.runs is None else self.runs

    @property
    def budget(self) -> float:
        """Seconds after which no further run begins."""
        return DEFAULT_SECONDS if self.runs is None else inf

    def cut_short_text(self, runs: int) -> str:
        """A line on how many runs were timed, if the time was up before all were; else empty."""
        if runs >= self.most_runs:
            return ""
        return f"{counted(runs, 'run')} in {DEFAULT_SECONDS:g} seconds; --runs {DEFAULT_RUNS} makes all of them"

    def judge(self, error: float | None, plan: Plan | None, outputs: Mapping[str, np.ndarray]) -> Judgement | None:
        """Compares an error with the largest one allowed; None if it was not measured.

        Args:
            error: of the outputs, relative to their range.
            plan: that made them; None if it is not known.
            outputs: the outputs.
        """
        if error is None:
            return None
        from numpy import isfinite

        filled = [y for y in outputs.values() if y.size]
        is_compared = not filled or any(isfinite(y).any() for y in filled)
        if self.max_error is not None:
            return Judgement(error, self.max_error, is_compared)
        from nnstretch.graph.reference import rounding_error

        steps = [] if plan is None else [step for step in plan.steps if step.op != "Dequantize"]
        rounding = len({step.layer for step in steps if ":int8/" in step.routine})
        return Judgement(error, _ERRORS_OF_OUTPUTS * self.tolerance + rounding_error(rounding), is_compared)


@dataclass(frozen=True)
class Judgement:
    """The error of outputs beside the largest one allowed, both relative to the outputs' range.

    Attributes:
        error: of the outputs.
        allowed: the largest one.
        is_compared: whether there are finite numbers, or none at all.
    """

    error: float
    allowed: float
    is_compared: bool = True

    @property
    def passes(self) -> bool:
        """Whether the error is allowed, and says anything."""
        return self.is_compared and self.error <= self.allowed

    def __str__(self) -> str:
        """One line."""
        if not self.is_compared and self.error <= self.allowed:
            return "ONNX Runtime's outputs have no finite numbers, either, so nothing was compared; give other inputs"
        place = "within" if self.passes else "beyond"
        found = f"largest error against ONNX Runtime {self.error:.1e} of the output's range"
        return f"{found}, {place} the allowed {self.allowed:.0e}"
