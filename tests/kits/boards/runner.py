"""Model files for the runner, and what it prints."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.cpu.processor import CpuProcessor
from nnstretch.devices.engine.build.instruction_sets import Isa, local_isa
from nnstretch.graph.dtypes import ELEMENT_TYPES
from nnstretch.package.standalone import write_model_file
from nnstretch.passes import optimize
from nnstretch.scheduler.planner import make_plan
from tests.kits.graphs.graphs import RandomNetwork
from tests.kits.graphs.typed_networks import TypedNetwork

QUICK = ("--runs", "3", "--warmup", "0")


def write_model(
    network: RandomNetwork | TypedNetwork,
    path: Path,
    queues: Sequence[tuple[int, ...]] = ((0,),),
    isa: Isa | None = None,
) -> Path:
    """Writes a network as a model file, with a queue per tuple of cores."""
    isa = isa or local_isa()
    processors = [CpuProcessor(ProcessorSpec("cpu", cores=cores), isa) for cores in queues]
    write_model_file(make_plan(optimize(network.graph()), processors, processors[0]), path.stem, isa, path)
    return path


def bench(
    *command: str | Path, status: int = 0, prefix: Sequence[str] = (), environment: dict[str, str] | None = None
) -> dict[str, Any]:
    """The object that the runner prints."""
    words = [*prefix, *map(str, command)]
    done = subprocess.run(words, capture_output=True, check=False, timeout=200, env=environment or {})
    assert done.returncode == status, (done.stdout, done.stderr)
    answer = json.loads(done.stdout.decode())
    assert isinstance(answer, dict)
    return answer


def refusal(*command: str | Path) -> str:
    """The one line with which the runner refuses its command line."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=60, env={})
    assert (done.returncode, done.stdout) == (2, ""), (done.stdout, done.stderr)
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    return line


def _words(stream: int, indices: np.ndarray) -> np.ndarray:
    """Words of a stream of splitmix64: devices/engine/runner/models/numbers.h."""
    with np.errstate(over="ignore"):
        word = np.uint64(stream) + (indices.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        word = (word ^ word >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        word = (word ^ word >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return np.asarray(word ^ word >> np.uint64(31))


def seeded_input(shape: Sequence[int], seed: int = 0, index: int = 0, dtype: str = "float32") -> np.ndarray:
    """The numbers that the runner makes for input `index` of a model."""
    count = int(np.prod(shape))
    stream = int(_words(seed, np.array([index]))[0])
    element = ELEMENT_TYPES[dtype]
    if element.kind == "float":
        parts = _words(stream, np.arange(3 * count)).view(np.uint16).reshape(count, 12)
        numbers = (parts.astype(np.int64).sum(1) - 6 * 65535) / 65536
    elif element.bytes == 1:
        lowest = _words(stream, np.arange(count)) & np.uint64(1 if dtype == "bool" else 0xFF)
        numbers = lowest.astype(np.float64) - (128 if dtype == "int8" else 0)
    else:
        numbers = np.zeros(count)
    return np.asarray(numbers.astype(np.dtype(dtype)).reshape(shape))
