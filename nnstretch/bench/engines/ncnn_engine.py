"""ncnn: models are converted by pnnx; weights of those in float32 remain that in the file and in memory.

Convolutions and dense layers of a quantised model compute in int8 with its weights and scales (`ncnn_int8`).
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import ncnn
import numpy as np

from nnstretch.bench.engines import Engine, Job
from nnstretch.bench.engines.ncnn_files import count_int8, make_int8, read_layers, read_param, write_layers
from nnstretch.bench.engines.settings import is_quantized
from nnstretch.support.progress import Progress

_NARROW = (
    "use_fp16_packed",
    "use_fp16_storage",
    "use_fp16_arithmetic",
    "use_bf16_packed",
    "use_bf16_storage",
)
_FAST = ("use_winograd_convolution", "use_sgemm_convolution", "use_packing_layout")


class NcnnEngine(Engine):
    """One thread per core; Winograd and packed layouts on, floats narrower than float32 off."""

    def __init__(self, job: Job, feeds: Mapping[str, np.ndarray], report: Progress) -> None:
        self._path = Path(job.file)
        self._net = ncnn.Net()
        options = self._net.opt
        options.num_threads = len(job.cores)
        options.use_vulkan_compute = False
        for name in _NARROW:
            setattr(options, name, False)
        for name in _FAST:
            setattr(options, name, True)
        for part, read in ((".param", self._net.load_param), (".bin", self._net.load_model)):
            if read(job.file + part):
                raise RuntimeError(f"ncnn cannot read the {part[1:]} file that pnnx wrote")
        names = self._net.input_names()
        # ncnn has no batch axis. Layers that work in place count references to their input: it must own its memory.
        arrays = [np.ascontiguousarray(value[0]) for value in feeds.values()]
        self._inputs = [(name, ncnn.Mat(array).clone()) for name, array in zip(names, arrays, strict=True)]
        self._outputs = list(self._net.output_names())
        self._found: list[Any] = []

    def run(self) -> None:
        extractor = self._net.create_extractor()
        for name, value in self._inputs:
            extractor.input(name, value)
        self._found = []
        for name in self._outputs:
            status, value = extractor.extract(name)
            if status:
                raise RuntimeError(f"ncnn fails in the layers before {name} with status {status}")
            self._found.append(value)

    def outputs(self) -> dict[str, np.ndarray]:
        arrays = [np.array(value.numpy()) for value in self._found]
        return {name: array[None] for name, array in zip(self._outputs, arrays, strict=True)}

    def facts(self) -> dict[str, Any]:
        facts = {"version": version("ncnn")}
        int8, layers = count_int8(read_param(self._path))
        return facts | {"dtype": "int8", "variant": f"{int8} of {layers} layers in int8"} if int8 else facts


def prepare(job: Job, folder: Path, report: Progress) -> Path:
    """Writes the model as ncnn's two files, PATH.param and PATH.bin, and returns PATH.

    Raises:
        RuntimeError: pnnx fails, or does not support an operator, or ncnn cannot express a quantised model.
    """
    if not is_quantized(job.onnx_path):
        return _converted(job.onnx_path, folder)
    from nnstretch.bench.engines.ncnn_int8 import int8_graph
    from nnstretch.frontends.onnx_file import load as load_onnx
    from nnstretch.frontends.onnx_file import save

    model, source = load_onnx(job.onnx_path), folder / "float.onnx"
    floating: set[int] = set()
    while True:
        made = int8_graph(model, floating)
        save(made.graph, source)
        path = _converted(source, folder)
        source.unlink()
        layers = read_layers(path)
        lost = make_int8(layers, made.layers)
        if not lost:
            write_layers(path, layers)
            return path
        floating |= {layer.number for layer in lost}


def _converted(onnx: Path, folder: Path) -> Path:
    """What pnnx makes of an ONNX file."""
    found = find_spec("pnnx")
    assert found is not None
    assert found.origin is not None
    program = Path(found.origin).parent / "pnnx"
    # pnnx writes further files beside its input, so it gets a name for it in the folder.
    source = folder / "source.onnx"
    source.symlink_to(onnx)
    path = folder / "model"
    outputs = {"ncnnparam": f"{path}.param", "ncnnbin": f"{path}.bin"}
    command = [str(program), str(source), "fp16=0", *(f"{key}={value}" for key, value in outputs.items())]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode or not Path(outputs["ncnnparam"]).is_file():
        raise RuntimeError(f"pnnx ended with status {done.returncode}: {_last_line(done.stderr or done.stdout)}")
    for left in folder.glob("source*"):
        left.unlink()
    return path


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "it said nothing")


load = NcnnEngine
