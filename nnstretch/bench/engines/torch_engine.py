"""PyTorch: eager, or compiled by inductor with frozen weights if there is a C++ compiler; the faster one counts."""

from __future__ import annotations

import copy
import shutil
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from nnstretch.bench.engines import Engine, Job
from nnstretch.errors import ModelError
from nnstretch.frontends.resolve import is_model_file, load_module, load_network
from nnstretch.support.progress import Progress

_CALLS = 3


class TorchEngine(Engine):
    """The fastest of the usual ways to run the module that a model's ONNX file becomes, with its weights.

    Where it cannot become one, the module of a zoo name or `module.py:factory` runs.

    Raises:
        ModelError: an ONNX file cannot become a module of torch.
    """

    def __init__(self, job: Job, feeds: Mapping[str, np.ndarray], report: Progress) -> None:
        torch.set_num_threads(len(job.cores))
        module = _module(job).eval()
        self._inputs = tuple(torch.from_numpy(x) for x in feeds.values())
        self._found: Any = None
        variants = _variants(module, self._inputs)
        seconds: dict[str, float] = {}
        for done, (name, call) in enumerate(variants.items()):
            report(done, len(variants), f"torch, {name}")
            seconds[name] = _fastest(call)
        self._variant = min(seconds, key=seconds.__getitem__)
        self._call = variants[self._variant]

    def run(self) -> None:
        self._found = self._call()

    def outputs(self) -> dict[str, np.ndarray]:
        found = self._found if isinstance(self._found, tuple | list) else (self._found,)
        return {str(i): y.contiguous().numpy() for i, y in enumerate(found)}

    def facts(self) -> dict[str, Any]:
        return {"version": torch.__version__, "variant": self._variant}


def _module(job: Job) -> nn.Module:
    try:
        return load_network(job.onnx).module
    except ModelError:
        if is_model_file(job.model):
            raise
    return load_module(job.model)[0]


def _variants(module: nn.Module, inputs: tuple[Tensor, ...]) -> dict[str, Callable[[], Any]]:
    """Ways to run a module, by name."""

    def call(function: Callable[..., Any], arguments: tuple[Tensor, ...]) -> Callable[[], Any]:
        def run() -> Any:
            with torch.inference_mode():
                return function(*arguments)

        return run

    channels_last = tuple(x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x for x in inputs)
    variants = {"eager": call(module, inputs)}
    if shutil.which("g++") or shutil.which("clang++"):
        from torch._inductor import config

        config.freezing = True  # folds batch norms and lays weights out for the kernels
        compiled = torch.compile(module)
        variants["compiled"] = call(compiled, inputs)
    else:
        variants["eager, channels last"] = call(_channels_last(module), channels_last)
    return variants


def _channels_last(module: nn.Module) -> nn.Module:
    """A copy of a module whose 4-dimensional weights are stored channels last."""
    copied = copy.deepcopy(module)
    for parameter in copied.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    return copied


def _fastest(call: Callable[[], Any]) -> float:
    """Seconds of the fastest of a few calls, after one that may compile."""
    call()
    seconds: list[float] = []
    for _ in range(_CALLS):
        begin = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begin)
    return min(seconds)


load = TorchEngine
