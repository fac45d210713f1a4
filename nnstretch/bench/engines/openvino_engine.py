"""OpenVINO's CPU plugin in float32; its default is bfloat16 where the CPU supports it.

Layers of a quantised model compute in int8 with either; the others have the faster precision. So have those of any model whose
products may be rounded to bfloat16.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino

from nnstretch.bench.engines import Engine, Job
from nnstretch.bench.engines.settings import setting_of, write_fastest
from nnstretch.support.progress import Progress

_FLOAT32 = "float32"
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    _FLOAT32: {"INFERENCE_PRECISION_HINT": "f32"},
    "its default precision": {},
}


class OpenVinoEngine(Engine):
    """One latency-optimised stream, one thread per core."""

    def __init__(self, job: Job, feeds: Mapping[str, np.ndarray], report: Progress, setting: str | None = None) -> None:
        self._variant = setting or setting_of(job, "")
        settings = {
            **_SETTINGS[self._variant or _FLOAT32],
            "INFERENCE_NUM_THREADS": len(job.cores),
            "PERFORMANCE_HINT": "LATENCY",
        }
        self._compiled = openvino.Core().compile_model(str(job.onnx_path), "CPU", settings)
        self._request = self._compiled.create_infer_request()
        self._feeds = list(feeds.values())  # the request knows their memory only
        for number, value in enumerate(self._feeds):
            self._request.set_input_tensor(number, openvino.Tensor(value, shared_memory=True))

    def run(self) -> None:
        self._request.infer(share_outputs=True)

    def outputs(self) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for i, output in enumerate(self._compiled.outputs):
            name = output.any_name if output.names else str(i)
            found[name] = np.array(self._request.get_output_tensor(i).data)
        return found

    def facts(self) -> dict[str, Any]:
        facts = {"version": openvino.__version__.split("-")[0]}
        if not self._variant:
            return facts
        rounds = self._compiled.get_property("INFERENCE_PRECISION_HINT") == openvino.Type.bf16
        return facts | {"variant": self._variant} | ({"dtype": "bfloat16"} if rounds else {})


def prepare(job: Job, folder: Path, report: Progress) -> Path:
    """The faster precision."""
    settings = {name: partial(OpenVinoEngine, job, report=report, setting=name) for name in _SETTINGS}
    return write_fastest(job, settings, folder)


load = OpenVinoEngine
