"""OpenVINO's CPU plugin in float32; its default is bfloat16 where the CPU supports it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import openvino

from nnstretch.bench.engines import Engine, Job
from nnstretch.support.progress import Progress


class OpenVinoEngine(Engine):
    """One latency-optimised stream, one thread per core."""

    def __init__(self, job: Job, feeds: Mapping[str, np.ndarray], report: Progress) -> None:
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",
            "INFERENCE_NUM_THREADS": len(job.cores),
            "PERFORMANCE_HINT": "LATENCY",
        }
        self._compiled = openvino.Core().compile_model(str(job.onnx_path), "CPU", settings)
        self._request = self._compiled.create_infer_request()
        self._feeds = dict(enumerate(feeds.values()))

    def run(self) -> None:
        self._request.infer(self._feeds, share_inputs=True, share_outputs=True)

    def outputs(self) -> dict[str, np.ndarray]:
        found: dict[str, np.ndarray] = {}
        for i, output in enumerate(self._compiled.outputs):
            name = output.any_name if output.names else str(i)
            found[name] = np.array(self._request.get_output_tensor(i).data)
        return found

    def facts(self) -> dict[str, Any]:
        return {"version": openvino.__version__.split("-")[0]}


load = OpenVinoEngine
