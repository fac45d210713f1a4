"""External engines: inference engines that compute a layer, or a fusion group, as one step of a plan.

A step of an external engine reads and writes plain tensors in the plan's memory. It uses one thread per core of its queue,
on these cores only; the threads of a CPU queue sleep meanwhile. As a processor (`nnstretch.devices.external.processor`) an
external engine has a call queue, whose thread blocks no other queue.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from nnstretch.devices.base.processor import Processor, ProcessorKind
from nnstretch.devices.base.routine import (
    NO_PARAMETERS,
    KernelCall,
    Lowering,
    Operand,
    Parameters,
    Routine,
    has_constant_weights,
)
from nnstretch.devices.base.spec import ProcessorSpec, running_on
from nnstretch.devices.engine.binding.library import MAX_READS, MAX_WRITES
from nnstretch.devices.engine.build.instruction_sets import Isa
from nnstretch.errors import ModelError, PackageError, UsageError
from nnstretch.graph.layer import OPERATORS, Layer, TensorType

_FALLBACK = "onnxruntime"
"""The engine for layers without a native routine."""
ExternalDtype = Literal["float32", "int8"]
"""Element type of an external engine's layers: float32 only, or int8 in at least one layer."""

_KEPT: Mapping[ExternalDtype, tuple[str, ...]] = {"float32": ("float32",), "int8": ("int8", "int32", "float32")}
"""Allowed element types of the tensors of such layers."""
_MOVES_NOTHING = ("Reshape",)
_WEIGHTED = ("Conv", "Dense", "Affine")


class ExternalModel(ABC):
    """A model loaded by an external engine."""

    @abstractmethod
    def run(self, reads: Sequence[np.ndarray], writes: Sequence[np.ndarray]) -> None:
        """Computes `writes` from `reads`: contiguous arrays of the model's types and in its order.

        Raises:
            DeviceError: the external engine failed.
        """


class ExternalEngine(ProcessorKind):
    """An external engine: its names, its routine on a CPU, its processors and its models.

    Attributes:
        name: name in processors (`litert@0`), in `--engines` and in routine descriptors of its processors.
        title: display name.
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
        """Most engines have no argument."""
        if argument:
            raise UsageError(f"{self.name} has no options except its cores, as in {self.name}@0-3; found {argument!r}")
        return ""

    def library(self, argument: str) -> str:
        """The path of a library that an argument names and that the engine runs as a program; empty for most."""
        return ""

    @abstractmethod
    def routine(self) -> ExternalRoutine:
        """The engine's routine on a CPU.

        Raises:
            MissingExtraError: it is not installed.
        """

    def foreign_processor(self, spec: ProcessorSpec, isa: Isa) -> Processor:
        """A processor of another machine, for plans without measurements.

        Args:
            spec: specification with cores.
            isa: instruction set of the machine.

        Raises:
            UsageError: standalone models, which run there, cannot use the engine; most engines are such.
            MissingExtraError: the package that writes its models is not installed here.
        """
        raise UsageError(f"processor {spec} is for this machine alone: standalone models cannot use {self.title}")

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
        """Loads a model and binds its threads to cores.

        Args:
            content: the model; it may be untrusted.
            cores: one thread per core.
            reads: types of the inputs.
            writes: types of the outputs.
            argument: argument of the engine, as for a processor.

        Raises:
            MissingExtraError: the engine is not installed.
            ModelError: the engine rejects the model.
            DeviceError: a delegate cannot be used.
            PackageError: the model has other inputs or outputs.
        """
        with running_on(cores):
            return self.load(content, max(1, len(cores)), reads, writes, argument)


def check_signature(what: str, found: Sequence[TensorType], wanted: Sequence[TensorType]) -> None:
    """Checks that a model's inputs (or outputs) are those of its step.

    Raises:
        PackageError: they differ.
    """
    if list(found) != list(wanted):
        raise PackageError(
            f"a model in the plan has the {what}s {', '.join(map(str, found)) or 'none'}, its step has "
            f"{', '.join(map(str, wanted))}; compile it again"
        )


def fallback_descriptor(layer: Layer) -> str:
    """Descriptor of the routine for layers without a native routine."""
    return f"cpu:{'int8' if layer.is_int8 else 'float32'}/{_FALLBACK}"


class ModelRoutine(Routine):
    """A routine that lowers to one call of a model on plain tensors."""

    def lower(self, layer: Layer, parameters: Parameters = NO_PARAMETERS) -> Lowering:
        """One call.

        Raises:
            ModelError: the engine's format cannot express the layer.
        """
        reads = tuple(Operand("input", i) for i in layer.activations)
        writes = tuple(Operand("output", i) for i in range(len(layer.outputs)))
        return Lowering((KernelCall(layer.name, reads, writes, model=self.model(layer)),))

    @abstractmethod
    def model(self, layer: Layer) -> bytes:
        """The layer in the engine's format, with run-time inputs and outputs in the layer's order.

        Raises:
            ModelError: the format cannot express the layer, or the model is too large.
        """


class ExternalRoutine(ModelRoutine):
    """Layers and fusion groups as one call of an external engine on plain tensors.

    The measured time includes the engine's internal layout changes.

    Routine parameters:
        release: version of the engine, two digits per part. It is not tuned; it separates measurements of releases.
    """

    def __init__(self, release: int, *, alone: bool = False, dtype: ExternalDtype = "float32") -> None:
        """Creates the routine.

        Args:
            release: version of the engine as a number.
            alone: whether it belongs to a processor of the engine, not to a CPU with other routines.
            dtype: element type of its layers.
        """
        self._parameters = {"release": release}
        self._dtype = dtype
        self._alone = alone
        self._expressible: dict[str, bool] = {}

    def supports(self, layer: Layer) -> bool:
        """Whether the engine computes `layer`: canonical operators of its element type with inputs and arithmetic.

        A processor of the engine also takes layers that move no data, so that they do not split its calls. It takes no
        layer that its format cannot express.
        """
        links = layer.parts or (layer,)
        types = [t for link in links for t in (*link.inputs, *link.outputs) if t is not None]
        known = all(link.op in OPERATORS and (link.op not in _WEIGHTED or has_constant_weights(link)) for link in links)
        moves = self._alone or any(link.op not in _MOVES_NOTHING for link in links)
        fits = len(layer.activations) <= MAX_READS and len(layer.outputs) <= MAX_WRITES
        plain = all(t.dtype in _KEPT[self._dtype] and t.elements for t in types)
        plain = plain and layer.is_int8 == (self._dtype == "int8")
        return (
            known
            and moves
            and fits
            and bool(layer.activations)
            and plain
            and (not self._alone or self.can_express(layer))
        )

    def can_express(self, layer: Layer) -> bool:
        """Whether the format can express a layer, or all parts of a fusion group.

        Layers are converted to find out; of those with weights only the activation.
        """
        links = layer.parts or (layer,)
        return all(self._is_expressible(_activation_of(link) if link.op in _WEIGHTED else link) for link in links)

    def _is_expressible(self, layer: Layer) -> bool:
        if layer.workload not in self._expressible:
            try:
                self.model(layer)
            except ModelError:
                self._expressible[layer.workload] = False
            else:
                self._expressible[layer.workload] = True
        return self._expressible[layer.workload]

    def parameter_space(self, layer: Layer) -> Sequence[Parameters]:
        return (self._parameters,)


def _activation_of(layer: Layer) -> Layer:
    """The activation of a layer as a layer of its own."""
    return Layer("activation", "Activation", layer.outputs, layer.outputs, activation=layer.activation)


def release_number(version: str) -> int:
    """Converts a version to a number, e.g. 1.31.0 to 13100; parts that are not numbers count as 0."""
    parts = [int(part) if part.isdigit() else 0 for part in version.split(".")[:3]]
    parts += [0] * (3 - len(parts))
    return sum(min(part, 99) * 100**place for place, part in enumerate(reversed(parts)))
