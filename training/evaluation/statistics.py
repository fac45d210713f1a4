"""Statistics of counted right answers. Loading this module loads neither torch nor numpy."""

from __future__ import annotations

import math
from collections.abc import Sequence

_QUANTILE = 1.959963984540054
# Of Student's t distribution with 1, 2, … degrees of freedom, at 97.5 %; beyond, the normal distribution's is close.
_T_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Of the normal distribution at 97.5 %: intervals have a confidence of 95 %."""


def wilson_interval(right: int, total: int) -> tuple[float, float]:
    """The 95 % confidence interval of a share that was counted as `right` of `total`; both ends in 0 … 1.

    Wilson, "Probable inference, the law of succession, and statistical inference" (1927). Without any count the share may be
    anything.
    """
    if total == 0:
        return 0.0, 1.0
    share, spread = right / total, _QUANTILE**2 / total
    middle = (share + spread / 2) / (1 + spread)
    half = _QUANTILE / (1 + spread) * math.sqrt(share * (1 - share) / total + spread / (4 * total))
    # Rounding must not take an end beyond the share itself, nor beyond 0 or 1.
    return min(max(0.0, middle - half), share), max(min(1.0, middle + half), share)


def mcnemar(only_first: int, only_second: int) -> float:
    """Probability that equally good classifiers differ as much on the same images, or more: McNemar's exact test.

    Args:
        only_first: images that only the first classifier gets right.
        only_second: images that only the second one gets right.

    Returns:
        The two-sided p-value: that of a fair coin, thrown once for every image that only one gets right.
    """
    fewer, throws = min(only_first, only_second), only_first + only_second
    of_all = throws * math.log(2)
    tail = sum(
        math.exp(math.lgamma(throws + 1) - math.lgamma(k + 1) - math.lgamma(throws - k + 1) - of_all)
        for k in range(fewer + 1)
    )
    return min(1.0, 2 * tail)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The mean of measurements, and half the width of its 95 % confidence interval by Student's t distribution.

    The interval of a single measurement is infinite.
    """
    mean, count = math.fsum(values) / len(values), len(values)
    if count < 2:
        return mean, math.inf
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    quantile = _T_QUANTILES[count - 2] if count - 2 < len(_T_QUANTILES) else _QUANTILE
    return mean, quantile * math.sqrt(variance / count)
