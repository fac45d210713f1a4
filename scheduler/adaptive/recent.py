"""The last few measurements of something, and what is typical of them."""

from __future__ import annotations

from collections import deque

FEWEST = 5
SPAN = 0.02
"""Seconds that the measurements make together at least: short runs are disturbed rarely, each time by a whole time slice."""
MOST = 64


class Recent:
    """Ratios of measured over undisturbed seconds: the last few runs, more of them where they are short."""

    def __init__(self) -> None:
        """No measurement yet."""
        self._values: deque[tuple[float, float]] = deque()
        self._seconds = 0.0
        self._undisturbed = 0.0

    def __len__(self) -> int:
        return len(self._values)

    @property
    def is_full(self) -> bool:
        """Whether older measurements have been forgotten for newer ones, or soon will be."""
        return len(self._values) >= MOST or (len(self._values) >= FEWEST and self._seconds >= SPAN)

    @property
    def slowness(self) -> float:
        """How many times as long as undisturbed it takes: a mean without the slowest, maybe an accident; 1 if unknown."""
        if not self._values:
            return 1.0
        if len(self._values) < 3:
            return min(seconds / undisturbed for seconds, undisturbed in self._values)
        slowest, its_share = max(self._values, key=lambda value: value[0] / value[1])
        return (self._seconds - slowest) / (self._undisturbed - its_share)

    def add(self, seconds: float, undisturbed: float) -> None:
        """One more measurement, of something that takes so long when nothing disturbs it."""
        self._values.append((seconds, undisturbed))
        self._seconds += seconds
        self._undisturbed += undisturbed
        while len(self._values) > FEWEST and (len(self._values) > MOST or self._seconds - self._values[0][0] >= SPAN):
            oldest = self._values.popleft()
            self._seconds -= oldest[0]
            self._undisturbed -= oldest[1]
