"""External engines: programs of others that compute a layer, or a fusion group, as one step of a plan.

An external engine's step reads and writes plain tensors in the plan's memory. It runs on the thread of its queue and on as many
threads as that queue has cores, on these cores alone. On a queue of the CPU the queue's own threads sleep meanwhile. As a
processor of its own (`nnstretch.devices.external.processor`) an external engine has a call queue, whose thread keeps no other
queue waiting.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import numpy as np

from nnstretch.devices.base.processor import Processor
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
from nnstretch.devices.base.spec import ProcessorSpec
from nnstretch.devices.engine.binding.library import MAX_READS, MAX_WRITES
from nnstretch.errors import ModelError, PackageError, UsageError
from nnstretch.graph.layer import OPERATORS, Layer, TensorType

_FALLBACK = "onnxruntime"
"""The engine that computes layers that no native routine covers."""
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


class ExternalEngine(ABC):
    """An external engine: its names, its routine on a CPU, its processors and its models.

    Attributes:
        name: in processors (`litert@0`), in `--engines`, and in descriptors of routines of its own processors.
        title: for people.
    """

    name: str
    title: str

    @abstractmethod
    def release(self) -> str:
        """Version of the engine.

        Raises:
            MissingExtraError: it is not installed.
        """

    def canonical_argument(self, argument: str) -> str:
        """The text that follows a processor's colon, such as a delegate, in one spelling; empty for the default.

        Raises:
            UsageError: it is not understood.
        """
        if argument:
            raise UsageError(
                f"{self.name} has nothing to choose but its cores, as in {self.name}@0-3; found {argument!r}"
            )
        return ""

    @abstractmethod
    def routine(self) -> ExternalRoutine:
        """Its routine on a CPU.

        Raises:
            MissingExtraError: it is not installed.
        """

    @abstractmethod
    def processor(self, spec: ProcessorSpec) -> Processor:
        """A processor that computes by this engine alone.

        Raises:
            MissingExtraError: the engine is not installed.
            DeviceError: it does not work here, or a delegate cannot be used.
        """

    @abstractmethod
    def load(
        self, content: bytes, threads: int, reads: Sequence[TensorType], writes: Sequence[TensorType], argument: str
    ) -> ExternalModel:
        """Loads a model; arguments and errors as for `open_model`."""

    def open_model(
        self,
        content: bytes,
        cores: Sequence[int],
        reads: Sequence[TensorType],
        writes: Sequence[TensorType],
        argument: str = "",
    ) -> ExternalModel:
        """Loads a model, whose threads stay on some cores.

        Args:
            content: the model, which need not be trusted.
            cores: one thread each.
            reads: types of the tensors that the model reads.
            writes: types of the tensors that it makes.
            argument: as for a processor.

        Raises:
            MissingExtraError: the engine is not installed.
            ModelError: it refuses the model.
            DeviceError: a delegate cannot be used.
            PackageError: the model is for other tensors.
        """
        with _on(cores):
            return self.load(content, max(1, len(cores)), reads, writes, argument)


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
    return f"cpu:{'int8' if layer.is_int8 else 'float32'}/{_FALLBACK}"


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
        """Whether the engine computes `layer`: canonical operators in its element type that read and compute something.

        An external engine that is a processor of its own also takes layers that move nothing, so that they do not divide its
        calls, but no layer that its format cannot express.
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
