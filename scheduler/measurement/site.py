"""The place where layers and plans are measured: this machine, or a device."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nnstretch.devices.base.processor import Processor
from nnstretch.errors import NNStretchError
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.measurement.caches import CacheSizes
from nnstretch.scheduler.measurement.candidate_set import CandidateSet
from nnstretch.scheduler.measurement.reference_cases import LayerUnderTest
from nnstretch.scheduler.measurement.store.rows import Measurement
from nnstretch.scheduler.plan.compiled import Compiled
from nnstretch.support.closing import Closing
from nnstretch.support.progress import Progress


@dataclass(frozen=True)
class ReferenceFrequency:
    """The frequency that times on a processor are normalised to.

    Core frequencies change by several percent within tenths of a second, above all on shared machines, and the times of all
    layers change with them. Times are normalised to one frequency, which is the same for all measurements in a store.

    Attributes:
        gflops: GFLOP/s of the processor's first core at this frequency (`Engine.clock_gflops`); None if unknown.
    """

    gflops: float | None

    def ratio(self, reading: float | None) -> float:
        """A core's frequency over the reference frequency, by its GFLOP/s; 1 if either is unknown."""
        return 1.0 if reading is None or self.gflops is None else reading / self.gflops


class UnmeasuredError(NNStretchError):
    """Something was not measured, where nothing is."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} was not measured; run `nnstretch tune`")


class MeasurementSite(Closing):
    """Measures candidates of layers, and whole plans, on the machine whose processors a plan is for.

    Profiling, selection and the search of parameters ask a site and know nothing of the machine. The profile store keeps
    what a site returns before the next call, so a tuning that ends early goes on from there.

    Attributes:
        measures: whether it measures. For a site that does not, only what the store has is known.
    """

    measures: bool = True

    @property
    @abstractmethod
    def caches(self) -> CacheSizes:
        """Caches of the machine, which decide the cache state that a network's layers are measured in."""

    @abstractmethod
    def compare(
        self, candidates: CandidateSet, test: LayerUnderTest, reference: ReferenceFrequency
    ) -> dict[int, Measurement]:
        """Measures the unknown candidates of a layer that are worth it, side by side, and checks their answers.

        Args:
            candidates: receive their seconds.
            test: what they compute, and on which processor.
            reference: frequency that times are normalised to.

        Returns:
            Measurements by the candidates' numbers. A candidate that fails is a measurement with the reason.

        Raises:
            DeviceError: the machine cannot measure.
        """

    def prepare(
        self, processor: Processor, layers: Sequence[Layer], progress: Progress, *, branched: bool = False
    ) -> None:
        """Prepares to measure layers of a network, and those of branches of it if `branched`, so that this takes less time."""

    @abstractmethod
    def seconds(self, compiled: Compiled) -> Sequence[float]:
        """Seconds of several runs of a plan.

        Raises:
            DeviceError: the plan cannot run.
        """

    @abstractmethod
    def step_seconds(self, compiled: Compiled) -> np.ndarray:
        """Seconds of every step of a plan (rows) in several runs (columns). Raises as `seconds` does."""

    @abstractmethod
    def round_trip(self, host: Processor, device: Processor, tensor: TensorType) -> tuple[float, tuple[float, ...]]:
        """Times a tensor's round trip host -> device -> host, which includes three copies.

        Returns:
            Seconds of an undisturbed round trip, and the seconds of every one.
        """

    @property
    def note(self) -> str:
        """What the user should know of the measurements so far; empty if there is nothing."""
        return ""

    def frequency(self, processor: Processor) -> float | None:
        """Current GFLOP/s of a processor's first core; None if unknown."""
        return None
