"""The inference engines of a comparison: one file and one entry in ENGINES each."""

from nnstretch.bench.engines.interface import Engine, EngineEntry, Job, Start

_HERE = "nnstretch.bench.engines"

ENGINES = (
    EngineEntry("nnstretch", "nnstretch", f"{_HERE}.nnstretch_engine", prepares="threads"),
    EngineEntry("ort", "onnxruntime", f"{_HERE}.onnxruntime_engine"),
    EngineEntry("openvino", "openvino", f"{_HERE}.openvino_engine", packages=("openvino",), extra="bench"),
    EngineEntry(
        "litert", "litert", f"{_HERE}.litert_engine", packages=("ai_edge_litert",), extra="bench", prepares="once"
    ),
    EngineEntry("torch", "torch", f"{_HERE}.torch_engine", packages=("torch",), extra="train", from_file=False),
    EngineEntry("ncnn", "ncnn", f"{_HERE}.ncnn_engine", packages=("ncnn", "pnnx"), extra="bench", prepares="once"),
)

__all__ = ["ENGINES", "Engine", "EngineEntry", "Job", "Start"]
