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
        self._values: deque[tuple[float, float, float]] = deque()  # ratio, seconds, undisturbed seconds
        self._seconds = 0.0
        self._undisturbed = 0.0
        self._slowest = (0.0, 0.0, 0.0)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def is_full(self) -> bool:
        """Whether there are as many as are kept."""
        return len(self._values) >= MOST or (len(self._values) >= FEWEST and self._seconds >= SPAN)

    @property
    def slowness(self) -> float:
        """How many times as long as undisturbed it takes: a mean without the slowest, maybe an accident; 1 if unknown."""
        if not self._values:
            return 1.0
        if len(self._values) < 3:
            return min(self._values)[0]
        _, seconds, undisturbed = self._slowest
        return (self._seconds - seconds) / (self._undisturbed - undisturbed)

    def add(self, seconds: float, undisturbed: float) -> None:
        """One more measurement, of something that takes so long when nothing disturbs it."""
        values = self._values
        added = (seconds / undisturbed, seconds, undisturbed)
        values.append(added)
        self._seconds += seconds
        self._undisturbed += undisturbed
        self._slowest = max(self._slowest, added)
        while len(values) > FEWEST and (len(values) > MOST or self._seconds - values[0][1] >= SPAN):
            oldest = values.popleft()
            self._seconds -= oldest[1]
            self._undisturbed -= oldest[2]
            if oldest == self._slowest:
                self._slowest = max(values)
