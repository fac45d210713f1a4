"""What `nnstretch run` is asked to do, on this machine or on a target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from nnstretch.cli.images import ImageRequest


@dataclass(frozen=True)
class RunRequest:
    """How a model is run.

    Attributes:
        inputs: .npy files by the names of inputs; all are random if empty.
        image: the image that the network reads, instead of `inputs`.
        output: where the outputs are written (.npz) or drawn on the image, if anywhere.
        runs: maximum number of timed runs.
        timeline: where a trace of one run is written, if anywhere.
        allowed: largest error of the outputs, relative to their range.
        seed: of random inputs.
    """

    inputs: Mapping[str, str]
    image: ImageRequest | None
    output: Path | None
    runs: int
    timeline: Path | None
    allowed: float
    seed: int

    def passes(self, error: float | None) -> bool:
        """Whether an error is allowed; None, which was not measured, is."""
        return error is None or error <= self.allowed

    def judged(self, error: float) -> str:
        """One line on the error of the outputs."""
        place = "within" if self.passes(error) else "beyond"
        return f"largest error against ONNX Runtime {error:.1e} of the output's range, {place} the allowed {self.allowed:.0e}"
