"""Cost models: seconds of a routine on a layer, measured or estimated. Contention factors of processors."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self

from nnstretch.devices.base.processor import Processor
from nnstretch.devices.base.routine import Layout, Parameters, Routine, reorder_layer
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.support.settings import transfer_delay_us

Contention = Callable[[tuple[int, ...]], Sequence[float]]
"""Ascending processor numbers -> the contention factor of each while the whole group works."""


class ContentionFactors:
    """A processor's time beside others over its time alone, asked for once per group."""

    def __init__(self, contention: Contention) -> None:
        self._of_group = cache(contention)

    def of(self, processor: int, others: Collection[int]) -> float:
        """Contention factor of a processor while others work."""
        group = tuple(sorted({processor, *others}))
        return self._of_group(group)[group.index(processor)]


@dataclass(frozen=True)
class Candidate:
    """A routine with a setting of its parameters: one way to compute a layer."""

    routine: Routine
    parameters: Parameters


@dataclass(frozen=True)
class Outcome:
    """What is known of a routine's answer for a layer, beside its time.

    Attributes:
        error: largest error relative to the output's range; None if unknown.
        failure: why it has no time; None if it has one, or was not measured.
    """

    error: float | None = None
    failure: str | None = None


Settings = Callable[[Processor, Routine, Layer], Sequence[Parameters]]
"""Parameter settings of a routine to compare for a layer that it supports."""


def settings_key(processor: Processor, routine: Routine, layer: Layer) -> tuple[str, str, str]:
    """Key of a routine's settings for a workload: fingerprint, workload, descriptor."""
    return processor.fingerprint, layer.workload, str(routine.descriptor)


def usual_settings(processor: Processor, routine: Routine, layer: Layer) -> Sequence[Parameters]:
    """The short list that the routine recommends."""
    return routine.parameter_space(layer)


def first_setting(processor: Processor, routine: Routine, layer: Layer) -> Sequence[Parameters]:
    """The setting that the routine recommends most."""
    return (routine.default_parameters(layer),)


class CostModel(ABC):
    """Seconds of routines, layout changes and transfers, for selection.

    A model does not change: `with_settings`, `without` and `in_network` return new ones, which share measurements with it.

    Attributes:
        measured: costs are seconds of the machine, so all settings of a routine are worth comparing.
        all_cross: tensors cost a transfer between any two queues. False where groups of CPU cores share caches.
    """

    measured: bool
    all_cross: bool = False
    _settings: Settings = staticmethod(usual_settings)
    _refuses: Callable[[Processor, Routine, Layer], bool] | None = None

    @abstractmethod
    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        """Seconds of a routine for a layer on a processor; None if it failed or its answer was wrong."""

    def with_settings(self, settings: Settings) -> Self:
        """A model for selections that consider these parameter settings and no others."""
        model = copy.copy(self)
        model._settings = settings
        return model

    def with_more_settings(self, more: Settings) -> Self:
        """A model for selections that consider these parameter settings too."""
        settings = self._settings
        return self.with_settings(lambda *routine_of_layer: (*settings(*routine_of_layer), *more(*routine_of_layer)))

    def without(self, refuses: Callable[[Processor, Routine, Layer], bool]) -> Self:
        """A model for selections that consider no setting of routines that are refused for a layer, here or before."""
        model, before = copy.copy(self), self._refuses
        if before is None:
            model._refuses = refuses
        else:
            model._refuses = lambda *routine_of_layer: before(*routine_of_layer) or refuses(*routine_of_layer)
        return model

    def settings(self, processor: Processor, routine: Routine, layer: Layer) -> Sequence[Parameters]:
        """Parameter settings that selection considers for a routine, which supports the layer; may be empty."""
        if self._refuses is not None and self._refuses(processor, routine, layer):
            return ()
        return self._settings(processor, routine, layer)

    def compare(self, processor: Processor, layer: Layer, candidates: Sequence[Candidate]) -> list[float | None]:
        """`seconds` of several candidates for one layer. A model that measures does so side by side."""
        return [self.seconds(processor, c.routine, layer, c.parameters) for c in candidates]

    def reorder_seconds(self, processor: Processor, tensor: TensorType, before: Layout, after: Layout) -> float | None:
        """Seconds of a layout change, or of a copy between equal layouts; None if the processor cannot do it."""
        layer, routine = reorder_layer(tensor, before, after), processor.reorder
        if not routine.supports(layer):
            return None
        return self.seconds(processor, routine, layer, routine.default_parameters(layer))

    def in_network(self, working_set: int) -> Self:
        """A model for the layers of one network, which decides where their weights are when they begin.

        Args:
            working_set: bytes of weights and activations that the network touches between two runs of a layer.
        """
        return self

    @abstractmethod
    def transfer(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        """Seconds to transfer a tensor between two processors, in either direction, without layout changes."""

    def error(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        """Error of a working routine's answer relative to the output's range; None if unknown."""
        return None

    def outcome(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> Outcome:
        """What is known of a routine's answer; nothing is measured for it."""
        return Outcome()


def hops(one: Processor, other: Processor, host: Processor) -> tuple[Processor, ...]:
    """The processors whose transfers from and to the host make up a transfer between two processors.

    Two devices pass a tensor by way of the host. Groups of cores of one CPU pass theirs as the host does to other cores.
    """
    devices = tuple(p for p in (one, other) if not p.backend.serves_caller)
    return devices or (other if one is host else one,)


_CORES_BASE, _CORES_BYTES_PER_SECOND = 20e-6, 1e9
"""Bounds of a transfer between cores: several times what clusters of a phone's CPU need to hand a cache line over, and less
than they copy. They are not measured, and matter only where a measurement was disturbed."""


def undelayed(processor: Processor, seconds: float, size: int) -> float:
    """Seconds of a transfer between the host and a processor, without what other programs delayed it by.

    Cores of one CPU share memory, so that a transfer that took longer than any CPU needs was delayed when it was measured.
    """
    most = _CORES_BASE + size / _CORES_BYTES_PER_SECOND + 1e-6 * transfer_delay_us()
    return min(seconds, most) if processor.backend.serves_caller else seconds


class Estimates(CostModel):
    """Costs from operation and byte counts, for plans without tuning; they suffice to avoid layout changes.

    Each routine counts as slightly slower than those for the same element type before it in its processor's list.
    """

    measured = False
    _MAC_BYTES_PER_SECOND = 120e9  # a vector holds more elements of a narrower type
    _BYTES_PER_SECOND = 10e9
    _PER_RANK = 0.05

    def seconds(self, processor: Processor, routine: Routine, layer: Layer, parameters: Parameters) -> float | None:
        dtype = routine.descriptor.dtype
        alike = [other for other in processor.routines if other.descriptor.dtype == dtype]
        rank = alike.index(routine) if routine in alike else 0
        moved = sum(t.bytes for t in (*layer.inputs, *layer.outputs) if t is not None)
        work = layer.macs * layer.outputs[0].element.bytes / self._MAC_BYTES_PER_SECOND + moved / self._BYTES_PER_SECOND
        return work * (1 + self._PER_RANK * rank)

    def transfer(self, one: Processor, other: Processor, tensor: TensorType) -> float:
        return 20e-6
