"""Latencies of layers that are only planned: sums of measured routines, for the search of branchings."""

from __future__ import annotations

from collections.abc import Sequence

from nnstretch.devices.processor import Processor
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.costmodel.learned import LearnedCosts
from nnstretch.scheduler.costmodel.trees import Errors
from nnstretch.scheduler.costs import Candidate
from nnstretch.scheduler.draft import joinable
from nnstretch.scheduler.profiling import Profiler


class ProfilePredictor:
    """Predicts seconds of a run of layers on a processor as the sum of their fastest routines.

    Every distinct layer is measured once per processor, with each routine's default parameters, and remembered in the
    profile store. With learned costs, only those layers are measured that too little is known of to predict them.
    """

    def __init__(
        self, processors: Sequence[Processor], profiler: Profiler, learned: LearnedCosts | None = None
    ) -> None:
        """`processors` are numbered in this order; `learned` are costs of layers that were not measured."""
        self._processors = tuple(processors)
        self._profiler = profiler
        self._learned = learned
        self._fastest: dict[tuple[int, str], float] = {}

    def seconds(self, layers: Sequence[Layer], processor: int) -> float:
        """Predicted seconds of `layers`, one after another, on the processor of that number; `inf` if it cannot."""
        return sum(self._layer_seconds(layer, processor) for layer in layers)

    def meeting_seconds(self, tensor: TensorType) -> float:
        """Predicted seconds that branches need to meet at `tensor`, beyond waiting for the slower one."""
        return self._profiler.handover(tensor)

    def error(self, processor: int) -> Errors | None:
        """What predictions of unseen layers on a processor miss by; None where all are measured.

        Raises:
            MissingExtraError: xgboost is not installed.
        """
        return self._learned.errors(self._processors[processor]) if self._learned else None

    def _layer_seconds(self, layer: Layer, number: int) -> float:
        key = (number, layer.workload)
        if key not in self._fastest:
            self._fastest[key] = self._fastest_seconds(layer, self._processors[number])
        return self._fastest[key]

    def _fastest_seconds(self, layer: Layer, processor: Processor) -> float:
        if layer.op == "Concat" and joinable(layer, processor.blocked) is not None:
            return 0.0
        candidates = [
            Candidate(routine, routine.parameter_space(layer)[0])
            for routine in processor.routines
            if routine.supports(layer)
        ]
        predicted = self._predicted(layer, processor, candidates)
        left = [c for c, seconds in zip(candidates, predicted, strict=True) if seconds is None]
        times = [*predicted, *self._profiler.compare(processor, layer, left)]
        return min((t for t in times if t is not None), default=float("inf"))

    def _predicted(self, layer: Layer, processor: Processor, candidates: Sequence[Candidate]) -> list[float | None]:
        """Seconds by learned costs; None for what has to be measured."""
        if self._learned is None:
            return [None] * len(candidates)
        return [self._learned.seconds(processor, c.routine, layer, c.parameters) for c in candidates]
