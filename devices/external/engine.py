"""External engines: engines of others that compute a layer, or a run of layers, as one step of a plan.

An external engine's step reads and writes plain tensors in the plan's memory. It runs on the thread of its queue and
as many threads as
that queue has cores, on these cores alone. On a queue of the CPU, where it competes with native kernels, the queue's
own threads
sleep meanwhile. As a processor of its own (`nnstretch.devices.external.processor`) it has a queue where nothing but calls run,
on a thread that keeps no other queue waiting.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np

from nnstretch.devices.base.routine import (
    NO_PARAMETERS,
    PLAIN,
    KernelCall,
    Layout,
    Lowering,
    Operand,
    Parameters,
    Routine,
    has_constant_weights,
)
from nnstretch.devices.engine.binding.library import MAX_READS, MAX_WRITES
from nnstretch.errors import ModelError, PackageError, UsageError
from nnstretch.graph.layer import OPERATORS, Layer, TensorType

ONNXRUNTIME = "cpu:float32/onnxruntime"
ONNXRUNTIME_INT8 = "cpu:int8/onnxruntime"
LITERT = "cpu:float32/litert"
ExternalDtype = Literal["float32", "int8"]
"""What an external engine's layers compute in: float32 alone, or int8 in some or all of them."""

_KEPT: Mapping[ExternalDtype, tuple[str, ...]] = {"float32": ("float32",), "int8": ("int8", "int32", "float32")}
"""Element types that tensors of such layers may have."""
_MOVES_NOTHING = ("Reshape",)
_WEIGHTED = ("Conv", "Dense", "Affine")


class ExternalModel(ABC):
    """A model that an external engine has loaded, ready to run."""

    @abstractmethod
    def run(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """Computes `writes` from `reads`: contiguous arrays of the model's types, in its order.

        Raises:
            DeviceError: the external engine failed.
        """


def open_external_model(
    routine: str, content: bytes, cores: Sequence[int], reads: Sequence[TensorType], writes: Sequence[TensorType]
) -> ExternalModel:
    """Loads a model into the external engine that a step's routine names.

    Args:
        routine: descriptor of the step's routine.
        content: the model, which need not be trusted.
        cores: those of the step's queue; the external engine gets a thread for each.
        reads: types of what the step gives it.
        writes: types of what the step wants of it.

    Raises:
        MissingExtraError: the external engine is not installed.
        ModelError: the external engine refuses the model.
        DeviceError: a delegate cannot be used.
        PackageError: there is no such external engine, or the model is for other tensors.
    """
    threads = max(1, len(cores))
    with _on(cores):
        processor, _, rest = routine.partition(":")
        _, _, delegate_name = rest.partition("/")
        if routine in (ONNXRUNTIME, ONNXRUNTIME_INT8) or processor == "ort":
            from nnstretch.devices.external.onnxruntime.model import OnnxRuntimeModel

            return OnnxRuntimeModel(content, threads, reads, writes)
        if routine == LITERT or processor == "tflite":
            from nnstretch.devices.external.litert.delegate import Delegate, parse_delegate
            from nnstretch.devices.external.litert.model import LiteRtModel

            delegate = Delegate() if routine == LITERT else parse_delegate(delegate_name)
            return LiteRtModel(content, threads, reads, writes, delegate)
    raise PackageError(f"plan is inconsistent: {routine} runs no models; compile it again")


@contextmanager
def _on(cores: Sequence[int]) -> Iterator[None]:
    """Moves the calling thread to cores for a while: threads that are started in the meantime stay there."""
    before = os.sched_getaffinity(0)
    there = before.intersection(cores)
    if not there:
        yield
        return
    os.sched_setaffinity(0, there)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def check_signature(what: str, found: Sequence[TensorType], wanted: Sequence[TensorType]) -> None:
    """Raises a PackageError unless a model's inputs (or outputs) are those of its step."""
    if list(found) != list(wanted):
        raise PackageError(
            f"a model in the plan has {what}s {', '.join(map(str, found)) or 'of no kind'} where its step has "
            f"{', '.join(map(str, wanted))}; compile it again"
        )


def fallback_descriptor(layer: Layer) -> str:
    """What computes layers that no native routine covers."""
    return ONNXRUNTIME_INT8 if layer.is_int8 else ONNXRUNTIME


class ModelRoutine(Routine):
    """A routine that makes one call of a model, all tensors plain."""

    def layouts(self, layer: Layer, parameters: Parameters) -> tuple[tuple[Layout, ...], tuple[Layout, ...]]:
        return (PLAIN,) * len(layer.activations), (PLAIN,) * len(layer.outputs)

    def lower(self, layer: Layer, parameters: Parameters = NO_PARAMETERS) -> Lowering:
        """One call.

        Raises:
            ModelError: the layer cannot be written for this external engine.
        """
        reads = tuple(Operand("input", i) for i in layer.activations)
        writes = tuple(Operand("output", i) for i in range(len(layer.outputs)))
        return Lowering((KernelCall(layer.name, reads, writes, model=self.model(layer)),))

    @abstractmethod
    def model(self, layer: Layer) -> bytes:
        """The layer in the external engine's format, its run-time inputs and outputs in their order.

        Raises:
            ModelError: the format has no words for it, or it is too large.
        """


class ExternalRoutine(ModelRoutine):
    """Layers and runs of layers as one call of an external engine, all tensors plain.

    What the external engine does with layouts of its own is part of its call, and so of its measured time.

    Routine parameters:
        release: of the external engine that was measured, two digits per part of its version: it is not tuned, but tells apart
            measurements of different releases.
    """

    def __init__(self, release: int, *, alone: bool = False, dtype: ExternalDtype = "float32") -> None:
        """For the layers that compute in `dtype`.

        `alone` says that its kind is all that its processor has, and not one routine of a CPU beside others.
        """
        self._parameters = {"release": release}
        self._dtype = dtype
        self._alone = alone
        self._said: dict[str, bool] = {}

    def supports(self, layer: Layer) -> bool:
        """Whatever nnstretch computes itself, in its element type, with something to compute and something to read.

        An external engine that has no others beside it takes layers that move nothing too, so that its calls go on
        through them; but none
        that its format has no words for.
        """
        links = layer.parts or (layer,)
        types = [t for link in links for t in (*link.inputs, *link.outputs) if t is not None]
        known = all(link.op in OPERATORS and (link.op not in _WEIGHTED or has_constant_weights(link)) for link in links)
        moves = self._alone or any(link.op not in _MOVES_NOTHING for link in links)
        fits = len(layer.activations) <= MAX_READS and len(layer.outputs) <= MAX_WRITES
        plain = all(t.dtype in _KEPT[self._dtype] and t.elements for t in types)
        plain = plain and layer.is_int8 == (self._dtype == "int8")
        return (
            known and moves and fits and bool(layer.activations) and plain and (not self._alone or self._can_say(links))
        )

    def _can_say(self, links: Sequence[Layer]) -> bool:
        """Whether the format has words for layers. All have them for layers with weights; others are written to find out."""
        return all(self._is_said(link) for link in links if not link.constants)

    def _is_said(self, layer: Layer) -> bool:
        if layer.workload not in self._said:
            try:
                self.model(layer)
            except ModelError:
                self._said[layer.workload] = False
            else:
                self._said[layer.workload] = True
        return self._said[layer.workload]

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        return (self._parameters,)


def release_number(version: str) -> int:
    """A version such as 1.31.0 as the number 13100; what is not a number counts as 0."""
    parts = [int(part) if part.isdigit() else 0 for part in version.split(".")[:3]]
    parts += [0] * (3 - len(parts))
    return sum(min(part, 99) * 100**place for place, part in enumerate(reversed(parts)))


def routines_of_engines(names: Sequence[str]) -> tuple[Routine, ...]:
    """The routines of external engines by their short names, `ort` and `litert`.

    Raises:
        UsageError: there is no external engine of that name, or one is named twice.
        MissingExtraError: one is not installed.
    """
    known = ("ort", "litert")
    wrong = [name for name in names if name not in known]
    if wrong or len(set(names)) != len(names):
        raise UsageError(
            f"engines {','.join(names)!r} are not understood; name each of {', '.join(known)} at most once"
        )
    made: list[Routine] = []
    for name in names:
        if name == "ort":
            from nnstretch.devices.external.onnxruntime.routine import OnnxRuntimeRoutine

            made.append(OnnxRuntimeRoutine())
        else:
            from nnstretch.devices.external.litert.routine import LiteRtRoutine

            made.append(LiteRtRoutine())
    return tuple(made)
