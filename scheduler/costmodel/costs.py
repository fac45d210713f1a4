"""Cost models: seconds for a routine on a layer, measured or estimated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Layout, Parameters, Routine, reorder_layer
from nnstretch.graph.layer import Layer, TensorType


@dataclass(frozen=True)
class Candidate:
    """A routine with its parameters: one way to compute a layer."""

    routine: Routine
    parameters: Parameters


Settings = Callable[[Processor, Routine, Layer], Sequence[Parameters]]
"""The parameter settings that are worth comparing of a routine that supports a layer."""


def settings_key(processor: Processor, routine: Routine, layer: Layer) -> tuple[str, str, str]:
    """What settings that were found are kept by: fingerprint, workload and descriptor."""
    return processor.fingerprint, layer.workload, str(routine.descriptor)


def usual_settings(processor: Processor, routine: Routine, layer: Layer) -> Sequence[Parameters]:
    """The short list that the routine recommends."""
    return routine.parameter_space(layer)


class CostModel(ABC):
    """What selection asks."""

    measured: bool
    """Whether costs are measured seconds: then all parameters of a routine are worth comparing."""
    all_cross: bool = False
    """Whether tensors cost a transfer between any two queues. Groups of CPU cores, which share caches, do without."""
    _offered: Settings = staticmethod(usual_settings)

    @abstractmethod
    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        """Seconds that `routine` takes for `layer` on `processor`; None if it failed or its answer was wrong."""

    def offer(self, settings: Settings) -> None:
        """From now on, selection takes the best of the parameter settings that `settings` says, whatever their costs."""
        self._offered = settings

    def offer_also(self, more: Settings) -> None:
        """From now on, selection may also take what `more` says."""
        offered = self._offered
        self._offered = lambda *about: (*offered(*about), *more(*about))

    def settings(self, processor: Processor, routine: Routine, layer: Layer) -> Sequence[Parameters]:
        """The parameter settings of a routine that supports `layer` from which selection takes the best; may be none."""
        return self._offered(processor, routine, layer)

    def compare(self, processor: Processor, layer: Layer, candidates: Sequence[Candidate]) -> list[float | None]:
        """Seconds of several candidates for one layer, each as `seconds` has it; measured together where they are measured."""
        return [self.seconds(processor, c.routine, layer, c.parameters) for c in candidates]

    def reorder_seconds(self, processor: Processor, tensor: TensorType, before: Layout, after: Layout) -> float | None:
        """Seconds that a processor takes to bring a tensor into another layout, or to copy it; None if it cannot."""
        layer, routine = reorder_layer(tensor, before, after), processor.reorder()
        if not routine.supports(layer):
            return None
        return self.seconds(processor, routine, layer, routine.parameter_space(layer)[0])

    def expect(self, working_set: int) -> None:  # noqa: B027 - what is not measured does not depend on it
        """Tells how many bytes of weights and activations a whole network goes through between two runs of one layer.

        Costs that are asked for from now on are those of a layer in such a network.
        """

    @abstractmethod
    def transfer(self, tensor: TensorType) -> float:
        """Seconds that a tensor costs when queues meet at it that do not share a cache, beyond layout changes."""

    def passing(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        """Seconds that a tensor costs when queues of these two processors meet at it, beyond layout changes."""
        return self.transfer(tensor)

    def error(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        """Error of a working routine's answer relative to the output's range; None if it is not known."""
        return None


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

    def transfer(self, tensor: TensorType) -> float:
        return 20e-6
