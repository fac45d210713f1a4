"""Results of a comparison: figures, ratios with intervals, verdicts and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from nnstretch.bench.regression.cases import Case, RegressionOptions
from nnstretch.bench.regression.commits import LETTERS, Commit
from nnstretch.bench.timing import geometric_mean, interval, significant
from nnstretch.report.tables.text import interval_text

_SLOWER = 1.02
"""Ratio of latencies above which the whole interval must lie for "slower"; below 1/_SLOWER it is "faster"."""
_TUNES_SLOWER = 1.25
"""Ratio of tuning times from which on there is a warning."""
_TOLERANCE = 5e-4
"""Largest difference of an output that is accepted, as a share of the output's range."""
_BAD = ("slower", "wrong", "failed")


class CommitFigures(NamedTuple):
    """What was measured of one commit in one process, or geometric means over several.

    Attributes:
        p50_ms: median over the rounds of the median latency in milliseconds.
        tuning_s: seconds that compiling and tuning took.
        start_s: seconds before that for imports, the engine and the processors.
    """

    p50_ms: float
    tuning_s: float
    start_s: float


class PairResult(NamedTuple):
    """What was measured of one pair of processes.

    Attributes:
        sides: A and B.
        ratios: bootstrap samples of the ratio B/A.
        difference: the largest difference between outputs of A and B, as a share of the output's range.
    """

    sides: tuple[CommitFigures, CommitFigures]
    ratios: np.ndarray
    difference: float

    @property
    def ratio(self) -> float:
        """The latency of B over that of A."""
        return self.sides[1].p50_ms / self.sides[0].p50_ms


@dataclass(frozen=True)
class CaseResult:
    """The result of a case.

    Attributes:
        case: what was compared.
        sides: A and B, if both of them ran: geometric means over the pairs of processes.
        errors: letter -> reason of a failure.
        pairs: the ratio B/A of each pair.
        ratios: bootstrap samples of the ratio B/A; empty after a failure.
        difference: the largest difference between outputs of A and B, as a share of the output's range.
    """

    case: Case
    sides: tuple[CommitFigures, CommitFigures] | None = None
    errors: Mapping[str, str] = field(default_factory=dict)
    pairs: tuple[float, ...] = ()
    ratios: np.ndarray = field(default_factory=lambda: np.empty(0))
    difference: float = math.nan

    @classmethod
    def of_pairs(cls, case: Case, pairs: Sequence[PairResult]) -> CaseResult:
        """The result of pairs of processes, at least one."""
        first, second = (
            CommitFigures(*_geometric_means([pair.sides[place] for pair in pairs]).tolist()) for place in (0, 1)
        )
        return cls(
            case,
            (first, second),
            pairs=tuple(pair.ratio for pair in pairs),
            ratios=_resampled_pairs([pair.ratios for pair in pairs]),
            difference=max(pair.difference for pair in pairs),
        )

    def ratio(self, name: str = "p50_ms") -> float:
        """A figure of B over that of A; NaN after a failure."""
        return getattr(self.sides[1], name) / getattr(self.sides[0], name) if self.sides else math.nan

    @property
    def verdict(self) -> str:
        """What follows: failed, wrong, slower, faster or same; a wrong output comes before the speed."""
        if not self.sides:
            return "failed"
        if not self.difference <= _TOLERANCE:
            return "wrong"
        low, high = interval(self.ratios)
        return "slower" if low > _SLOWER else "faster" if high < 1 / _SLOWER else "same"

    @property
    def is_bad(self) -> bool:
        """Whether the verdict counts against B."""
        return self.verdict in _BAD

    @property
    def warning(self) -> str:
        """That B tunes much longer than A; else empty."""
        ratio = self.ratio("tuning_s")
        return f"{self.case}: B tunes {ratio:.2f} times as long as A" if ratio > _TUNES_SLOWER else ""

    def __str__(self) -> str:
        if self.errors:
            return "; ".join(f"{letter.upper()} failed: {reason}" for letter, reason in sorted(self.errors.items()))
        return f"B/A {self.ratio():.3f} ({interval_text(interval(self.ratios), '.3f')}), {self.verdict}"

    def to_json(self) -> dict[str, Any]:
        """One entry of "results". A difference that is infinite, as for outputs of other shapes, is null."""
        sides: dict[str, Any] = {letter: {"error": reason} for letter, reason in self.errors.items()}
        for letter, side in zip(LETTERS, self.sides or (), strict=False):
            sides[letter] = {name: significant(value) for name, value in side._asdict().items()}
        return {
            **self.case._asdict(),
            **{letter: sides.get(letter) for letter in LETTERS},
            "ratio": _finite(self.ratio()),
            "pair_ratios": [significant(ratio) for ratio in self.pairs],
            "interval": [significant(end) for end in interval(self.ratios)] if self.sides else None,
            "tuning_ratio": _finite(self.ratio("tuning_s")),
            "max_rel_difference": _finite(self.difference),
            "verdict": self.verdict,
        }


@dataclass(frozen=True)
class RegressionResult:
    """The result of a comparison.

    Attributes:
        commits: A and B.
        options: how they were measured.
        cases: the result of each case.
    """

    commits: Sequence[Commit]
    options: RegressionOptions
    cases: Sequence[CaseResult]

    @property
    def status(self) -> int:
        """The exit status: 1 if a case is slower or wrong, or fails, else 0."""
        return int(any(result.is_bad for result in self.cases))

    def means(self) -> dict[str, Any]:
        """The geometric means of the ratios over all cases that ran, as in JSON; null if none did."""
        measured = [result for result in self.cases if result.sides]
        if not measured:
            return {"geometric_mean": None, "geometric_mean_interval": None, "tuning_geometric_mean": None}
        samples = _geometric_means([result.ratios for result in measured])
        return {
            "geometric_mean": _finite(geometric_mean([result.ratio() for result in measured])),
            "geometric_mean_interval": [significant(end) for end in interval(samples)],
            "tuning_geometric_mean": _finite(geometric_mean([result.ratio("tuning_s") for result in measured])),
        }

    def to_json(self) -> dict[str, Any]:
        """The whole answer."""
        return {
            **{letter: commit._asdict() for letter, commit in zip(LETTERS, self.commits, strict=True)},
            "pairs": self.options.pairs,
            "rounds": self.options.timing.rounds,
            "seconds": self.options.timing.turn,
            "results": [result.to_json() for result in self.cases],
            **self.means(),
            "status": self.status,
        }


def _resampled_pairs(ratios: Sequence[np.ndarray]) -> np.ndarray:
    """Bootstrap samples of the geometric mean over pairs of processes: pairs are drawn, and samples of their rounds.

    Args:
        ratios: per pair the bootstrap samples over its rounds; equal numbers of samples.

    Returns:
        As many samples.
    """
    table = np.array(ratios)
    pairs, samples = table.shape
    drawn = np.random.default_rng(0).integers(0, pairs, (pairs, samples))
    return _geometric_means(np.take_along_axis(table, drawn, axis=0))


def _geometric_means(rows: Sequence[Sequence[float]] | Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """The geometric mean of every column."""
    return np.asarray(np.exp(np.mean(np.log(rows), axis=0)))


def _finite(value: float | None) -> float | None:
    """A number for JSON: None if it is unknown, infinite or NaN."""
    return None if value is None or not math.isfinite(value) else significant(value)
