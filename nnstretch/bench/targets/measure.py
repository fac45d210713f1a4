"""Measures models on targets, several targets at the same time."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, TypeVar

import numpy as np

from nnstretch.bench.targets.gain import Gain
from nnstretch.bench.targets.models import TargetModel
from nnstretch.devices.targets.base import OnLine
from nnstretch.devices.targets.device import Device
from nnstretch.devices.targets.probe import Probe
from nnstretch.devices.targets.results import BenchOptions, ModelResult
from nnstretch.errors import NNStretchError, StoppedError
from nnstretch.graph.reference import largest_error

_Answer = TypeVar("_Answer")


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
        """The runner's entry with the user's name of the model and the error."""
        entry = {key: value for key, value in (self.result.raw or {}).items() if key != "file"}
        error = self.error if self.error is not None and math.isfinite(self.error) else None
        return {
            **entry,
            "model": self.model.name,
            "macs": self.model.macs,
            "routines": self.model.routines,
            "max_rel_error": error,
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
    files: dict[str, Path] = {}
    for number, (name, array) in enumerate(model.feeds.items()):
        files[name] = folder / f"{number}.bin"
        files[name].write_bytes(np.ascontiguousarray(array, "<f4").tobytes())
    result, raw = device.outputs(model.file, files, patience)
    described = (result.models[0].raw or {}).get("outputs", ())
    if result.models[0].error is not None or len(described) != len(raw):
        return None, {}
    outputs = {
        str(one["name"]): np.frombuffer(content, "<f4").reshape(one["shape"])
        for one, content in zip(described, raw, strict=True)
    }
    return None if model.reference is None else largest_error(outputs, model.reference), outputs


def on_all(
    devices: Mapping[str, Device], work: Callable[[str, Device], _Answer], failed: Callable[[str, str], _Answer]
) -> dict[str, _Answer]:
    """Does some work on several devices at the same time.

    An error of the only device is raised; one of several becomes an answer. Ctrl-C, SIGTERM and SIGHUP end the runners.

    Args:
        devices: by the names of their targets.
        work: called with a target and its device, one thread each.
        failed: the answer for a target, from its error.

    Raises:
        NNStretchError: the only device failed.
        StoppedError: a signal other than that of Ctrl-C arrived.
    """
    with _stopped_by_signals(), ThreadPoolExecutor(max(1, len(devices))) as pool:
        futures = {name: pool.submit(work, name, device) for name, device in devices.items()}
        try:
            while wait(futures.values(), _BETWEEN_SIGNALS).not_done:
                pass
            return {name: _answer(name, future, failed, alone=len(devices) == 1) for name, future in futures.items()}
        except (KeyboardInterrupt, StoppedError):
            # Again until all have ended: a runner may have been about to start.
            while True:
                for name, future in futures.items():
                    if not future.done():
                        with suppress(NNStretchError):
                            devices[name].interrupt()
                if not wait(futures.values(), _BETWEEN_SIGNALS).not_done:
                    raise


_BETWEEN_SIGNALS = 0.5
"""Seconds: a wait without an end may miss a signal that arrives as it begins."""


@contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """Within the block, SIGTERM and SIGHUP raise StoppedError, so that what runs on targets is ended."""

    def stop(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        raise StoppedError(f"stopped by {name}; nothing is left on the targets", _SIGNALLED + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


_SIGNALLED = 128
"""Added to a signal's number in the exit status."""


def _answer(name: str, future: Future[_Answer], failed: Callable[[str, str], _Answer], *, alone: bool) -> _Answer:
    try:
        return future.result()
    except NNStretchError as error:
        if alone or isinstance(error, StoppedError):
            raise
        return failed(name, str(error))
