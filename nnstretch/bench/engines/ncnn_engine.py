"""ncnn in float32: models are converted by pnnx; weights remain float32 in the file and in memory."""

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
from nnstretch.support.progress import Progress

_NARROW = (
    "use_fp16_packed",
    "use_fp16_storage",
    "use_fp16_arithmetic",
    "use_bf16_packed",
    "use_bf16_storage",
    "use_int8_packed",
    "use_int8_storage",
    "use_int8_arithmetic",
)
_FAST = ("use_winograd_convolution", "use_sgemm_convolution", "use_packing_layout")


class NcnnEngine(Engine):
    """One thread per core; Winograd and packed layouts on, everything narrower than float32 off."""

    def __init__(self, job: Job, feeds: Mapping[str, np.ndarray], report: Progress) -> None:
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
        # ncnn has no batch axis. Each array stays alive beside the Mat that points into it.
        self._arrays = [np.ascontiguousarray(value[0]) for value in feeds.values()]
        self._inputs = [(name, ncnn.Mat(array)) for name, array in zip(names, self._arrays, strict=True)]
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
        return {"version": version("ncnn")}


def prepare(job: Job, folder: Path, report: Progress) -> Path:
    """Writes the model as ncnn's two files, PATH.param and PATH.bin, and returns PATH.

    Raises:
        RuntimeError: pnnx fails, or does not support an operator.
    """
    found = find_spec("pnnx")
    assert found is not None
    assert found.origin is not None
    program = Path(found.origin).parent / "pnnx"
    # pnnx writes further files beside its input, so it gets a name for it in the folder.
    source = folder / "source.onnx"
    source.symlink_to(job.onnx_path)
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
