"""The engines that a benchmark compares: a file each, and a line each in ENGINES."""

from nnstretch.bench.engines.interface import Engine, EngineEntry, Job, Report

ENGINES = (
    EngineEntry("nnstretch", "nnstretch", "nnstretch.bench.engines.nnstretch_engine"),
    EngineEntry("ort", "onnxruntime", "nnstretch.bench.engines.onnxruntime_engine"),
    EngineEntry("openvino", "openvino", "nnstretch.bench.engines.openvino_engine"),
    EngineEntry("torch", "torch", "nnstretch.bench.engines.torch_engine"),
)

__all__ = ["ENGINES", "Engine", "EngineEntry", "Job", "Report"]
