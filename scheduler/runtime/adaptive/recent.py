"""A window of the last measurements, and their mean slowness."""

from __future__ import annotations

from collections import deque

FEWEST = 5
SPAN = 0.02
"""Seconds that the window covers at least. Short runs are disturbed rarely, but by a whole time slice each time."""
MOST = 64


class Recent:
    """The last runs with their undisturbed times: more of them where runs are short."""

    def __init__(self) -> None:
        """Begins empty."""
        self._values: deque[tuple[float, float, float]] = deque()  # ratio, seconds, undisturbed seconds
        self._seconds = 0.0
        self._undisturbed = 0.0
        self._slowest = (0.0, 0.0, 0.0)

    def __len__(self) -> int:
        return len(self._values)

    @property
    def is_full(self) -> bool:
        """Whether the window has its final length."""
        return len(self._values) >= MOST or (len(self._values) >= FEWEST and self._seconds >= SPAN)

    @property
    def slowness(self) -> float:
        """Mean time over undisturbed time, without the slowest run, which may be an outlier; 1 if unknown."""
        if not self._values:
            return 1.0
        if len(self._values) < 3:
            return min(self._values)[0]
        _, seconds, undisturbed = self._slowest
        return (self._seconds - seconds) / (self._undisturbed - undisturbed)

    def add(self, seconds: float, undisturbed: float) -> None:
        """Adds a run of `seconds` that takes `undisturbed` seconds if nothing disturbs it."""
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
