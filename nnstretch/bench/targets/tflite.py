"""Models as TFLite files, for TFLite's own benchmark tool on targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from nnstretch.bench.targets.measure import Measured
from nnstretch.bench.targets.models import TargetModel
from nnstretch.devices.targets.benchmark_model import NAME
from nnstretch.devices.targets.device import Device
from nnstretch.devices.targets.results import BenchOptions, ModelResult
from nnstretch.errors import ModelError, first_line
from nnstretch.support.words import counted

if TYPE_CHECKING:
    import onnx_ir as ir

SUFFIX = ".tflite"


@dataclass(frozen=True)
class TfliteModel:
    """A model as a TFLite file.

    Attributes:
        name: as the user wrote the model.
        file: the TFLite file.
        error: why there is none; empty if there is one.
    """

    name: str
    file: Path
    error: str = ""


def tflite_model(name: str, graph: ir.Model, file: Path) -> TfliteModel:
    """A model as a TFLite file: itself, if it is one, else written from its graph, with images N,H,W,C.

    A layer without counterpart in TFLite is an error of the model.

    Args:
        name: as the user wrote the model.
        graph: not fused.
        file: where it is written.

    Raises:
        FileError: it cannot be written.
        MissingExtraError: LiteRT is not installed.
    """
    if name.endswith(SUFFIX):
        return TfliteModel(name, Path(name))
    from nnstretch.exporters.options import ExportOptions
    from nnstretch.exporters.tflite_file import save_tflite

    try:
        save_tflite(graph, file, ExportOptions(check=False))
    except ModelError as error:
        return TfliteModel(name, file, first_line(error))
    return TfliteModel(name, file)


def measure_tflite(
    device: Device, tool: Path, models: Sequence[TfliteModel], options: BenchOptions, threads: int
) -> list[Measured]:
    """Times models by TFLite's benchmark tool, one after another.

    Args:
        device: the target.
        tool: the tool for the target.
        models: the models.
        options: how long each is timed.
        threads: of the interpreter.

    Raises:
        TargetError: the tool cannot be run, hung, or was not understood.
    """
    found = []
    for model in models:
        name = f"{model.name} ({NAME}, {counted(threads, 'thread')})"
        if model.error:
            result = ModelResult(model.name, model.name, model.error, raw={"name": name, "error": model.error})
        else:
            result = device.bench_tflite(tool, model.file, name, options, threads)
        found.append(Measured(TargetModel(name, model.file), result, None, {}))
    return found
