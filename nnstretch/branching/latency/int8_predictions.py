"""Predicted latencies of quantised networks: those of their layers' int8 forms."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from nnstretch.branching.latency.prediction import LatencyPredictor
from nnstretch.graph.int8_form import int8_form, int8_tensor
from nnstretch.graph.layer import Layer, TensorType, fused_pair


@dataclass(eq=False)
class Int8Predictor:
    """A `LatencyPredictor` that is asked of a network in float32, and answers for the network in int8.

    Attributes:
        predictor: of layers of any type.
    """

    predictor: LatencyPredictor
    _forms: dict[str, tuple[Layer, ...]] = field(default_factory=dict, init=False)

    def seconds(self, layers: list[Layer], processor: int) -> float:
        """Seconds of the int8 forms of these layers in sequence; residuals are added where their convolutions can do that."""
        forms = [self._form(layer) for layer in layers]
        seconds = self.predictor.seconds([part for form in forms for part in form], processor)
        if not math.isfinite(seconds):
            return seconds
        return seconds - sum(self._saved(form, processor) for form in forms)

    def _saved(self, form: tuple[Layer, ...], processor: int) -> float:
        """Seconds that one routine for a convolution and the addition of its residual saves."""
        pair = _residual_pair(form)
        if pair is None:
            return 0.0
        return max(
            0.0, self.predictor.seconds(list(pair.parts), processor) - self.predictor.fused_seconds(pair, processor)
        )

    def fused_seconds(self, pair: Layer, processor: int) -> float:
        """Seconds of the routine for the int8 forms of a pair; `inf` if there is none, or a form is no single layer."""
        first, second = (self._int8([part]) for part in pair.parts)
        if len(first) != 1 or len(second) != 1:
            return math.inf
        return self.predictor.fused_seconds(fused_pair(first[0], second[0]), processor)

    def confirm(self, layers: list[Layer], processor: int) -> bool:
        """Measures the int8 forms that `seconds` only estimates; returns whether a prediction changed."""
        pairs = filter(None, (_residual_pair(self._form(layer)) for layer in layers))
        return self.predictor.confirm([*self._int8(layers), *pairs], processor)

    def meeting_seconds(self, tensor: TensorType, writers: Collection[int], readers: Collection[int]) -> float:
        """Communication cost in seconds until all `readers` can read the rounded tensor."""
        return self.predictor.meeting_seconds(int8_tensor(tensor), writers, readers)

    def fetch_seconds(self, tensor: TensorType, writers: Collection[int], readers: Collection[int]) -> float:
        """The part of it in which the next layers read the rounded tensor from other processors' caches."""
        return self.predictor.fetch_seconds(int8_tensor(tensor), writers, readers)

    def contention_factor(self, processor: int, others: frozenset[int]) -> float:
        """Time of a processor while `others` work, over its time alone."""
        return self.predictor.contention_factor(processor, others)

    def _int8(self, layers: Sequence[Layer]) -> list[Layer]:
        return [part for layer in layers for part in self._form(layer)]

    def _form(self, layer: Layer) -> tuple[Layer, ...]:
        if layer.workload not in self._forms:
            self._forms[layer.workload] = int8_form(layer)
        return self._forms[layer.workload]


def _residual_pair(form: tuple[Layer, ...]) -> Layer | None:
    """The fusion group of a convolution and the addition of its residual, if a form begins with these."""
    return fused_pair(*form[:2]) if [part.op for part in form[:2]] == ["Conv", "Add"] else None
