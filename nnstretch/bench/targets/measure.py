"""Measures models on a target."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from nnstretch.bench.targets.gain import Gain
from nnstretch.bench.targets.models import TargetModel
from nnstretch.bench.targets.timelines import target_timeline
from nnstretch.devices.targets.base import OnLine
from nnstretch.devices.targets.device import Device
from nnstretch.devices.targets.probe import Probe
from nnstretch.devices.targets.results import BenchOptions, ModelResult, arrays_of
from nnstretch.graph.reference import largest_error
from nnstretch.package.standalone_head import read_ends


@dataclass(frozen=True)
class Measured:
    """A model's measurement on a target.

    Attributes:
        model: the model.
        result: the runner's answer.
        error: largest error of the outputs relative to their range, infinite or NaN if the outputs are; None if there is no
            reference, or the model failed. JSON has null for all of these.
        outputs: by name, of one run with the model's inputs; empty if the inputs are not known.
    """

    model: TargetModel
    result: ModelResult
    error: float | None
    outputs: Mapping[str, np.ndarray]

    def to_json(self) -> dict[str, Any]:
        """The runner's entry with the user's name of the model, the error, and a traced run with the names of layers."""
        entry = {key: value for key, value in (self.result.raw or {}).items() if key not in ("file", "timeline")}
        run = target_timeline(self.model, self.result)
        error = self.error if self.error is not None and math.isfinite(self.error) else None
        return {
            **entry,
            "model": self.model.name,
            "macs": self.model.macs,
            "routines": self.model.routines,
            "max_rel_error": error,
            **({} if run is None else {"run": run.to_json()}),
        }


@dataclass(frozen=True)
class TargetRun:
    """What a target gave.

    Attributes:
        target: its name.
        measured: in the order of the models.
        probe: what the target is; None if that is not known.
        stopped: why the runner ended early; None if it did not.
        failure: why there is no measurement; empty if there is one.
        gain: of the last model over the others, if it is a branched network and they are its alternatives.
    """

    target: str
    measured: Sequence[Measured] = ()
    probe: Probe | None = None
    stopped: str | None = None
    failure: str = ""
    gain: Gain | None = None

    @property
    def failed(self) -> bool:
        """Whether no model was measured."""
        return bool(self.failure) or all(one.result.error is not None for one in self.measured)

    def to_json(self) -> dict[str, Any]:
        """The answer of `bench --json` for the target."""
        if self.failure:
            return {"target": self.target, "error": self.failure}
        return {
            "target": self.target,
            "stopped": self.stopped,
            **(self.gain.to_json() if self.gain is not None else {}),
            "device": self.probe.raw if self.probe is not None else None,
            "results": [one.to_json() for one in self.measured],
        }


def measure_models(
    device: Device, models: Sequence[TargetModel], options: BenchOptions, on_progress: OnLine | None = None
) -> TargetRun:
    """Checks the outputs of models on a device, then times the models against each other.

    Raises:
        FeedError: the inputs of a model have other names, shapes or types than it.
        TargetError: the device or its runner fails. A model that fails is a result with an error.
    """
    with TemporaryDirectory(prefix="nnstretch-inputs-") as folder:
        checked = [_checked(device, model, Path(folder), options.patience) for model in models]
    timed = device.bench([model.file for model in models], options, on_progress=on_progress)
    measured = [
        Measured(model, result, error, outputs)
        for model, result, (error, outputs) in zip(models, timed.models, checked, strict=True)
    ]
    return TargetRun(device.name, measured, timed.probe, timed.stopped)


def _checked(
    device: Device, model: TargetModel, folder: Path, patience: float
) -> tuple[float | None, dict[str, np.ndarray]]:
    """The error of a model's outputs, and the outputs; nothing if the inputs are not known or the model fails."""
    if not model.feeds:
        return None, {}
    ends = read_ends(model.file)
    files: dict[str, Path] = {}
    for number, (name, array) in enumerate(ends.arrays(model.feeds).items()):
        files[name] = folder / f"{number}.bin"
        files[name].write_bytes(array.tobytes())
    result, raw = device.outputs(model.file, files, patience)
    if result.models[0].error is not None:
        return None, {}
    arrays = arrays_of(raw, [tensor.type for tensor in ends.outputs], model.name)
    outputs = {tensor.name: array for tensor, array in zip(ends.outputs, arrays, strict=True)}
    return None if model.reference is None else largest_error(outputs, model.reference), outputs
