"""Contention factors: a processor's time beside others over its time alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

Contention = Callable[[tuple[int, ...]], Sequence[float]]
"""Ascending processor numbers -> the contention factor of each while the whole group works."""


class ContentionFactors:
    """A contention whose answers are cached per group."""

    def __init__(self, contention: Contention) -> None:
        """Measures nothing yet."""
        self._contention = contention
        self._groups: dict[tuple[int, ...], Sequence[float]] = {}

    def of(self, processor: int, others: Collection[int]) -> float:
        """Contention factor of a processor while others work."""
        group = tuple(sorted({processor, *others}))
        if group not in self._groups:
            self._groups[group] = self._contention(group)
        return self._groups[group][group.index(processor)]
