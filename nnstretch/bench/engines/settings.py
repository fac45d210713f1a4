"""The fastest of an engine's settings for a quantised model, found before it is compared."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median

import numpy as np
import onnx
from onnx import helper

from nnstretch.bench.engines import Engine, Job

Feeds = Mapping[str, np.ndarray]
_ROUNDS = 9


def is_quantized(path: Path) -> bool:
    """Whether an ONNX file has QuantizeLinear operators."""
    return b"QuantizeLinear" in path.read_bytes()


def write_fastest(job: Job, settings: Mapping[str, Callable[[Feeds], Engine]], folder: Path) -> Path:
    """Times an engine with each of its settings in turn, on random inputs, and writes the name of the fastest.

    Args:
        job: of the engine, with an ONNX file of static shapes.
        settings: name -> the engine with this setting.
        folder: for the file.
    """
    feeds = _random_feeds(job.onnx_path)
    engines = {name: load(feeds) for name, load in settings.items()}
    times: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(_ROUNDS + 1):
        for name, engine in engines.items():
            begin = time.perf_counter()
            engine.run()
            if number:  # the first run allocates
                times[name].append(time.perf_counter() - begin)
    path = folder / "setting.txt"
    path.write_text(min(times, key=lambda name: median(times[name])))
    return path


def setting_of(job: Job, default: str) -> str:
    """The setting that `write_fastest` wrote; the default for models that are not quantised."""
    return Path(job.file).read_text() if job.file else default


def _random_feeds(path: Path) -> Feeds:
    graph, generator = onnx.load(path, load_external_data=False).graph, np.random.default_rng(0)
    constants = {tensor.name for tensor in graph.initializer}
    feeds: dict[str, np.ndarray] = {}
    for value in graph.input:
        if value.name not in constants:
            tensor = value.type.tensor_type
            shape = [dimension.dim_value for dimension in tensor.shape.dim]
            values = generator.standard_normal(shape)
            feeds[value.name] = values.astype(helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    return feeds
