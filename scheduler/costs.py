"""Cost models: seconds for a routine on a layer, measured or estimated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from nnstretch.devices.processor import Processor
from nnstretch.devices.routine import Parameters, Routine
from nnstretch.graph.layer import Layer, TensorType


@dataclass(frozen=True)
class Candidate:
    """A routine with its parameters: one way to compute a layer."""

    routine: Routine
    parameters: Parameters


class CostModel(ABC):
    """What selection asks."""

    measured: bool
    """Whether costs are measured seconds: then all parameters of a routine are worth comparing."""

    @abstractmethod
    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        """Seconds that `routine` takes for `layer` on `processor`; None if it failed or its answer was wrong."""

    def compare(self, processor: Processor, layer: Layer, candidates: Sequence[Candidate]) -> list[float | None]:
        """Seconds of several candidates for one layer, each as `seconds` has it; measured together where they are measured."""
        return [self.seconds(processor, c.routine, layer, c.parameters) for c in candidates]

    def expect(self, working_set: int) -> None:  # noqa: B027 - what is not measured does not depend on it
        """Tells how many bytes of weights and activations a whole network goes through between two runs of one layer.

        Costs that are asked for from now on are those of a layer in such a network.
        """

    @abstractmethod
    def handover(self, tensor: TensorType) -> float:
        """Seconds that a tensor costs when host and OpenCL lanes meet at it, beyond layout changes."""


class Estimates(CostModel):
    """Costs from operation and byte counts alone, for plans that are not tuned: enough to keep layouts flowing.

    A routine that stands later in its processor's list counts as a little slower than those before it.
    """

    measured = False
    _MACS_PER_SECOND = 30e9
    _BYTES_PER_SECOND = 10e9
    _PER_RANK = 0.05

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        rank = list(processor.routines).index(routine) if routine in processor.routines else 0
        moved = 4 * sum(t.elements for t in (*layer.inputs, *layer.outputs) if t is not None)
        work = layer.macs / self._MACS_PER_SECOND + moved / self._BYTES_PER_SECOND
        return work * (1 + self._PER_RANK * rank)

    def handover(self, tensor: TensorType) -> float:
        return 20e-6
