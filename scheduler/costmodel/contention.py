"""How many times as long processors take beside each other as alone, asked for once per group of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

Contention = Callable[[tuple[int, ...]], Sequence[float]]
"""How many times as long each of some processors, by number, ascending, takes while the others work too."""


class ContentionFactors:
    """What a contention says, remembered."""

    def __init__(self, contention: Contention) -> None:
        """Asks for nothing yet."""
        self._contention = contention
        self._groups: dict[tuple[int, ...], Sequence[float]] = {}

    def of(self, processor: int, others: Collection[int]) -> float:
        """How many times as long a processor takes while `others` work too."""
        group = tuple(sorted({processor, *others}))
        if group not in self._groups:
            self._groups[group] = self._contention(group)
        return self._groups[group][group.index(processor)]
