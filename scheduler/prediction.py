"""Latencies of layers that are only planned: sums of measured routines, for the search of branchings."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from nnstretch.devices.processor import Processor
from nnstretch.errors import ModelError
from nnstretch.graph.layer import Layer, TensorType
from nnstretch.scheduler.profiling import Profiler


class ProfilePredictor:
    """Predicts seconds of a run of layers on a processor as the sum of their fastest routines.

    Every distinct layer is measured once per processor and remembered in the profile store.
    """

    def __init__(
        self,
        processors: Sequence[Processor],
        profiler: Profiler,
        progress: Callable[[int, int, str], None] | None = None,
    ) -> None:
        self._processors = tuple(processors)
        self._profiler = profiler
        self._progress = progress
        self._fastest: dict[tuple[int, str], float] = {}

    def seconds(self, layers: Sequence[Layer], processor: int) -> float:
        """Predicted seconds of `layers`, one after another, on the processor of that number.

        Raises:
            ModelError: no routine there computes one of them.
        """
        return sum(self._layer_seconds(layer, processor) for layer in layers)

    def meeting_seconds(self, tensor: TensorType) -> float:
        """Predicted seconds that branches need to meet at `tensor`, beyond waiting for the slower one."""
        return self._profiler.handover(tensor)

    def _layer_seconds(self, layer: Layer, number: int) -> float:
        key = (number, layer.workload)
        if key not in self._fastest:
            if self._progress:
                self._progress(len(self._fastest), len(self._fastest) + 1, layer.name)
            self._fastest[key] = self._measured(layer, self._processors[number])
        return self._fastest[key]

    def _measured(self, layer: Layer, processor: Processor) -> float:
        times = [
            self._profiler.seconds(processor, routine, layer, routine.parameter_space(layer)[0])
            for routine in processor.routines
            if routine.supports(layer)
        ]
        known = [t for t in times if t is not None]
        if not known:
            raise ModelError(f"no routine of {processor.name} computes {layer.op} ({layer.name})")
        return float(np.min(known))
