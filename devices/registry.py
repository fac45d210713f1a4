"""Kinds of processors besides CPUs and OpenCL devices, by name, each loaded on first use.

Light on purpose: the help of the commands lists the forms of specifications.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple, cast

from nnstretch.errors import PackageError, UsageError

if TYPE_CHECKING:
    from nnstretch.devices.base.processor import ProcessorKind
    from nnstretch.devices.external.engine import ExternalEngine, ExternalModel, ExternalRoutine
    from nnstretch.graph.layer import TensorType


class KindEntry(NamedTuple):
    """The module that defines a kind of processor as `KIND`, and the form of its specifications."""

    module: str
    form: str


ENGINES: Mapping[str, KindEntry] = {
    "ort": KindEntry("onnxruntime", "ort[@CORES]"),
    "litert": KindEntry("litert", "litert[:LIB][@CORES]"),
}
"""Name of an external engine, as in `ort@0-3` and `--engines ort` -> its kind. The module, in `devices/external`, also names
the engine's routine on a CPU."""

KINDS: dict[str, KindEntry] = {
    **{name: KindEntry(f"{__package__}.external.{kind.module}", kind.form) for name, kind in ENGINES.items()},
    "sim": KindEntry(f"{__package__}.simulated.processor", "sim:PROFILE/NAME"),
}
"""Name of a kind -> its module and form."""

ALIASES: Mapping[str, str] = {"tflite": "litert", "onnxruntime": "ort"}
"""Older names of engines in processors and packages, and names of their libraries -> current names."""


def specifications() -> tuple[str, ...]:
    """The forms of processor specifications, one for each kind."""
    return "cpu[:CORES[*RATIOS]]", "opencl[:N][@CORES]", *(kind.form for kind in KINDS.values())


def processor_kind(name: str) -> ProcessorKind:
    """The kind of a name in `KINDS`."""
    found: ProcessorKind = import_module(KINDS[name].module).KIND
    return found


def external_engine(name: str) -> ExternalEngine:
    """The engine of a name in `ENGINES`; its library is loaded on first use."""
    return cast("ExternalEngine", processor_kind(name))


def routines_of_engines(names: Sequence[str]) -> tuple[ExternalRoutine, ...]:
    """Routines of external engines for a CPU.

    Raises:
        UsageError: a name is unknown or given twice.
        MissingExtraError: an engine is not installed.
    """
    names = [ALIASES.get(name, name) for name in names]
    if not ENGINES.keys() >= set(names) or len(set(names)) != len(names):
        raise UsageError(
            f"engines {','.join(names)!r} are not understood; name each of {', '.join(ENGINES)} at most once"
        )
    return tuple(external_engine(name).routine() for name in names)


def open_external_model(
    routine: str, content: bytes, cores: Sequence[int], reads: Sequence[TensorType], writes: Sequence[TensorType]
) -> ExternalModel:
    """Loads a model into the external engine that a step's routine (its descriptor) names.

    Arguments and errors are those of `ExternalEngine.open_model`.

    Raises:
        PackageError: there is no such engine.
    """
    name, argument = _engine_of(routine)
    return external_engine(name).open_model(content, cores, reads, writes, argument)


def loaded_library(routine: str) -> str:
    """The path of a library that a step's routine has its external engine load; empty for most.

    Raises:
        PackageError: there is no such engine.
    """
    name, argument = _engine_of(routine)
    return external_engine(name).library(argument)


def library_of_processor(text: str) -> str:
    """The path of a library that a processor's external engine loads, such as of "litert:libdelegate.so@0"; else empty."""
    name, _, rest = text.partition(":")
    name = ALIASES.get(name, name)
    return external_engine(name).library(rest.partition("@")[0]) if name in ENGINES else ""


def _engine_of(routine: str) -> tuple[str, str]:
    """Name and argument of the external engine that a step's routine names.

    Raises:
        PackageError: there is no such engine.
    """
    processor, _, rest = routine.partition(":")
    _, _, algorithm = rest.partition("/")
    name, argument = ALIASES.get(processor, processor), algorithm
    if processor == "cpu":
        name, argument = next((n for n, kind in ENGINES.items() if kind.module == algorithm), ""), ""
    if name not in ENGINES:
        raise PackageError(f"plan is inconsistent: {routine} runs no models; compile it again")
    return name, argument
