"""All external engines by name. A new engine is a folder with a module `engine` that defines `ENGINE`, and a line here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING

from nnstretch.errors import PackageError, UsageError

if TYPE_CHECKING:
    from nnstretch.devices.external.engine import ExternalEngine, ExternalModel, ExternalRoutine
    from nnstretch.graph.layer import TensorType

FOLDERS: Mapping[str, str] = {"ort": "onnxruntime", "litert": "litert"}
"""Name of an engine, as in `ort@0-3` and `--engines ort` -> its folder, also the name of its routine on a CPU."""

ALIASES: Mapping[str, str] = {"tflite": "litert"}
"""Older names of engines in processors and packages -> current names."""


def external_engine(name: str) -> ExternalEngine:
    """The engine of a name in `FOLDERS`; its library is loaded on first use."""
    found: ExternalEngine = import_module(f"{__package__}.{FOLDERS[name]}.engine").ENGINE
    return found


def routines_of_engines(names: Sequence[str]) -> tuple[ExternalRoutine, ...]:
    """Routines of external engines for a CPU.

    Raises:
        UsageError: a name is unknown or given twice.
        MissingExtraError: an engine is not installed.
    """
    if not FOLDERS.keys() >= set(names) or len(set(names)) != len(names):
        raise UsageError(
            f"engines {','.join(names)!r} are not understood; name each of {', '.join(FOLDERS)} at most once"
        )
    return tuple(external_engine(name).routine() for name in names)


def open_external_model(
    routine: str, content: bytes, cores: Sequence[int], reads: Sequence[TensorType], writes: Sequence[TensorType]
) -> ExternalModel:
    """Loads a model into the external engine that a step's routine names.

    Args:
        routine: descriptor of the step's routine.
        content: the model; it may be untrusted.
        cores: cores of the step's queue; the engine gets one thread per core.
        reads: types of the model's inputs.
        writes: types of the model's outputs.

    Raises:
        MissingExtraError: the engine is not installed.
        ModelError: the engine rejects the model.
        DeviceError: a delegate cannot be used.
        PackageError: there is no such engine, or the model has other inputs or outputs.
    """
    processor, _, rest = routine.partition(":")
    _, _, algorithm = rest.partition("/")
    name, argument = ALIASES.get(processor, processor), algorithm
    if processor == "cpu":
        name, argument = next((n for n, folder in FOLDERS.items() if folder == algorithm), ""), ""
    if name not in FOLDERS:
        raise PackageError(f"plan is inconsistent: {routine} runs no models; compile it again")
    return external_engine(name).open_model(content, cores, reads, writes, argument)
