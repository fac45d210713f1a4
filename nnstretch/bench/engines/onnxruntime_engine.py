"""ONNX Runtime's CPU provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnxruntime

from nnstretch.bench.engines.interface import Engine, Job, Report


class OnnxRuntimeEngine(Engine):
    """All graph optimisations, one thread per core."""

    def __init__(self, job: Job, feeds: Mapping[str, np.ndarray]) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = len(job.cores)
        options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(str(job.onnx_path), options, providers=["CPUExecutionProvider"])
        names = [i.name for i in self._session.get_inputs()]
        self._feeds = dict(zip(names, feeds.values(), strict=True))
        self._found: list[Any] = []

    def run(self) -> None:
        self._found = self._session.run(None, self._feeds)

    def outputs(self) -> dict[str, np.ndarray]:
        names = [o.name for o in self._session.get_outputs()]
        return {name: np.asarray(y) for name, y in zip(names, self._found, strict=True)}

    def facts(self) -> dict[str, Any]:
        return {"version": onnxruntime.__version__}


def load(job: Job, feeds: Mapping[str, np.ndarray], report: Report) -> Engine:
    """The model, ready to run."""
    return OnnxRuntimeEngine(job, feeds)
