"""ONNX Runtime's CPU provider; of a quantised model with the faster setting of `session.qdqisint8allowed`.

By default, layers on int8 (not uint8) activations compute in float32 on x86; the setting lets them compute in int8.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import onnxruntime

from nnstretch.bench.engines import Engine, Job
from nnstretch.bench.engines.settings import is_quantized, setting_of, write_fastest
from nnstretch.support.onnxruntime_levels import limit_optimisations
from nnstretch.support.progress import Progress

_SETTING = "session.qdqisint8allowed"
_SETTINGS = {f"{_SETTING}={value}": value for value in "01"}


class OnnxRuntimeEngine(Engine):
    """All graph optimisations that the model can have, one thread per core.

    Options: "streams" (1; the number of inputs in flight, one thread each, which share the cores).
    """

    def __init__(self, job: Job, feeds: Mapping[str, np.ndarray], report: Progress, setting: str | None = None) -> None:
        options = onnxruntime.SessionOptions()
        self._streams = int(job.options.get("streams", 1))
        options.intra_op_num_threads = max(1, len(job.cores) // self._streams)
        options.inter_op_num_threads = 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        options.log_severity_level = 3
        limit_optimisations(options, job.onnx_path)
        self._variant = setting or setting_of(job, "")
        if self._variant:
            options.add_session_config_entry(_SETTING, _SETTINGS[self._variant])
        self._session = onnxruntime.InferenceSession(str(job.onnx_path), options, providers=["CPUExecutionProvider"])
        names = [i.name for i in self._session.get_inputs()]
        self._feeds = dict(zip(names, feeds.values(), strict=True))
        self._binding = self._session.io_binding()
        for name, value in self._feeds.items():
            self._binding.bind_cpu_input(name, value)
        for output in self._session.get_outputs():
            self._binding.bind_output(output.name, "cpu")
        self._path = job.onnx_path

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding)

    def rate(self, budget: float) -> tuple[int, float]:
        begin = time.perf_counter()

        def work(_: int) -> int:
            done = 0
            while not done or time.perf_counter() - begin < budget:
                self._session.run(None, self._feeds)
                done += 1
            return done

        with ThreadPoolExecutor(self._streams) as threads:
            done = sum(threads.map(work, range(self._streams)))
        return done, time.perf_counter() - begin

    def outputs(self) -> dict[str, np.ndarray]:
        names = [o.name for o in self._session.get_outputs()]
        return dict(zip(names, self._binding.copy_outputs_to_cpu(), strict=True))

    def facts(self) -> dict[str, Any]:
        facts = {"version": onnxruntime.__version__, "dtype": _dtype(self._path, self._variant)}
        return facts | ({"variant": self._variant} if self._variant else {})


def prepare(job: Job, folder: Path, report: Progress) -> Path:
    """The faster setting for a quantised model."""
    settings = {name: partial(OnnxRuntimeEngine, job, report=report, setting=name) for name in _SETTINGS}
    return write_fastest(job, settings, folder)


def _dtype(path: Path, setting: str) -> str:
    """int8 if ONNX Runtime's optimised graph has an int8 operator, else float32."""
    if not is_quantized(path):
        return "float32"
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    limit_optimisations(options, path)
    if setting:
        options.add_session_config_entry(_SETTING, _SETTINGS[setting])
    with TemporaryDirectory() as folder:
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        operators = {node.op_type for node in onnx.load(options.optimized_model_filepath).graph.node}
    return "int8" if any(name.startswith(("QLinear", "QGemm")) for name in operators) else "float32"


load = OnnxRuntimeEngine
