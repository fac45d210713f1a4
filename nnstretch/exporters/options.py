"""What is written, and the formats."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from nnstretch.errors import UsageError

ONNX, TFLITE, PROGRAM = ".onnx", ".tflite", ".pt2"
FORMATS = {ONNX: "ONNX", TFLITE: "TFLite", PROGRAM: "torch.export"}
"""Ending of a file -> name of its format."""


@dataclass(frozen=True)
class ExportOptions:
    """How a model is written.

    Attributes:
        float16_weights: a TFLite file stores weights of float32 layers as float16 and computes in float32.
        channels_last: images of a TFLite file are N,H,W,C; else they stay N,C,H,W.
        check: the outputs of a TFLite file or program for one random input are compared with those of the model.
        branches: folder for a file per branch of a branched network; None: only the whole model is written.
        processors: names of the processors of the design, by number; empty if not known.
    """

    float16_weights: bool = False
    channels_last: bool = True
    check: bool = True
    branches: Path | None = None
    processors: tuple[str, ...] = ()

    def check_format(self, path: Path) -> str:
        """The ending of `path`, which states the format.

        Raises:
            UsageError: it is that of no format, or an option does not apply to its format.
        """
        suffix = path.suffix.lower()
        if suffix not in FORMATS:
            known = ", ".join(f"{ending} ({name})" for ending, name in FORMATS.items())
            found = f"the ending {path.suffix!r}" if path.suffix else "no ending"
            raise UsageError(f"{path} has {found}; choose the format by one of {known}")
        if suffix != TFLITE and self.float16_weights:
            raise UsageError(f"float16 weights are for {TFLITE} files; {path} is none")
        if suffix != TFLITE and not self.channels_last:
            raise UsageError(f"the order of axes is for {TFLITE} files; {path} is none and has N,C,H,W")
        if suffix == PROGRAM and self.branches is not None:
            raise UsageError(f"a file per branch is {ONNX} or {TFLITE}; {path} is a {PROGRAM} file")
        if self.processors and self.branches is None:
            raise UsageError("names of processors are for a file per branch; name its folder, or leave them out")
        return suffix
