"""Measured interference between local processors: an `InterferenceModel` for placement and simulation."""

from __future__ import annotations

from nnstretch.devices.base.routine import PLAIN
from nnstretch.graph.layer import TensorType
from nnstretch.scheduler.costmodel.contention import Contention, ContentionFactors
from nnstretch.scheduler.costmodel.costs import CostModel
from nnstretch.scheduler.lowering.queue_pool import QueuePool

_SMALL = TensorType((1, 16, 7, 7))
_LARGE = TensorType((1, 64, 56, 56))


class MeasuredInterference:
    """Transfers cost a constant plus a term per byte, fitted to a small and a large tensor."""

    whole_tensors = False

    def __init__(self, pool: QueuePool, costs: CostModel, contention: Contention) -> None:
        """Measures nothing yet.

        Args:
            pool: the queues.
            costs: give the cost of transfers between two processors.
            contention: of processors by name.
        """
        self._pool, self._costs, self._contention_factors = pool, costs, ContentionFactors(contention)
        self._lines: dict[frozenset[int], tuple[float, float]] = {}

    def transfer_seconds(self, queue: int, others: frozenset[int], size: int, /) -> float:
        """The slowest transfer from any of the others."""
        lines = [self._line(queue, other) for other in others]
        return max((fixed + per_byte * size for fixed, per_byte in lines), default=0.0)

    def contention_factor(self, queue: int, others: frozenset[int], /) -> float:
        """As measured with typical layers. A caller's queue that only serves a device slows down no other queue."""
        numbers = [self._pool.queue_of.index(m) for m in (queue, *others) if m in self._pool.queue_of]
        if queue not in self._pool.queue_of or len(numbers) < 2:
            return 1.0
        return self._contention_factors.of(numbers[0], numbers)

    def _line(self, one: int, other: int) -> tuple[float, float]:
        """Seconds of an empty transfer, and per byte."""
        pair = frozenset({one, other})
        if pair not in self._lines:
            processors = [self._pool.processors[queue] for queue in sorted(pair)]
            small, large = (self._costs.passing(processors[0], processors[-1], tensor) for tensor in (_SMALL, _LARGE))
            least, most = PLAIN.bytes(_SMALL), PLAIN.bytes(_LARGE)
            per_byte = max(0.0, large - small) / (most - least)
            self._lines[pair] = (max(0.0, small - per_byte * least), per_byte)
        return self._lines[pair]
