"""LiteRT, the runtime of TFLite files, with its XNNPACK delegate (the default for float32)."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from ai_edge_litert import interpreter

from nnstretch.bench.engines import Engine, Job
from nnstretch.devices.external.litert.engine import open_interpreter
from nnstretch.support.progress import Progress


class LiteRtEngine(Engine):
    """One thread per core. TFLite files have channels last; inputs are transposed before the timed run."""

    def __init__(self, job: Job, feeds: Mapping[str, np.ndarray], report: Progress) -> None:
        self._interpreter = open_interpreter(interpreter, model_path=job.file, num_threads=len(job.cores))
        for about, value in zip(self._interpreter.get_input_details(), feeds.values(), strict=True):
            turned = value.transpose(0, 2, 3, 1) if value.ndim == 4 else value
            self._interpreter.set_tensor(about["index"], np.ascontiguousarray(turned))

    def run(self) -> None:
        self._interpreter.invoke()

    def outputs(self) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for about in self._interpreter.get_output_details():
            value = self._interpreter.get_tensor(about["index"])
            found[about["name"]] = np.ascontiguousarray(value.transpose(0, 3, 1, 2) if value.ndim == 4 else value)
        return found

    def facts(self) -> dict[str, Any]:
        integers = any(about["dtype"] == np.int8 for about in self._interpreter.get_tensor_details())
        return {"version": version("ai-edge-litert"), "dtype": "int8" if integers else "float32"}


def prepare(job: Job, folder: Path, report: Progress) -> Path:
    """The model as a TFLite file."""
    from nnstretch.devices.external.litert.writer import write_tflite
    from nnstretch.frontends.onnx_file import load as load_onnx

    path = folder / "model.tflite"
    path.write_bytes(write_tflite(load_onnx(str(job.onnx_path))))
    return path


load = LiteRtEngine
