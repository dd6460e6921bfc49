"""Means of few runs with their intervals, and whether two sets of runs differ: Student's t."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True)
class Estimate:
    """The mean of some values, their standard deviation (n − 1), and the interval of the mean."""

    mean: float
    deviation: float
    low: float
    high: float


@dataclass(frozen=True)
class SetDifference:
    """The mean of B minus that of A.

    Attributes:
        a, b: the means.
        difference: b − a.
        low, high: its interval.
        p_value: two-sided, of no difference.
        method: paired t or Welch's t.
    """

    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float
    method: str

    @property
    def differs(self) -> bool:
        """Whether the interval leaves 0 out."""
        return self.low > 0 or self.high < 0


def estimate_mean(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Mean ± t·s/√n; of one value the interval is infinite."""
    count = len(values)
    mean = math.fsum(values) / count
    if count == 1:
        return Estimate(mean, math.nan, -math.inf, math.inf)
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = t_quantile(0.5 + confidence / 2, count - 1) * deviation / math.sqrt(count)
    return Estimate(mean, deviation, mean - half, mean + half)


def compare_paired(a: Sequence[float], b: Sequence[float], confidence: float = 0.95) -> SetDifference:
    """B − A for values that belong together pair by pair, such as runs of the same seed."""
    gaps = [y - x for x, y in zip(a, b, strict=True)]
    found = estimate_mean(gaps, confidence)
    error = found.deviation / math.sqrt(len(gaps))
    means = math.fsum(a) / len(a), math.fsum(b) / len(b)
    return _difference(*means, found.mean, error, len(gaps) - 1, confidence, "paired t")


def compare_welch(a: Sequence[float], b: Sequence[float], confidence: float = 0.95) -> SetDifference:
    """B − A for two independent sets of possibly different spread (Welch 1947)."""
    first, second = estimate_mean(a), estimate_mean(b)
    parts = first.deviation**2 / len(a), second.deviation**2 / len(b)
    error = math.sqrt(sum(parts))
    spread = parts[0] ** 2 / (len(a) - 1) + parts[1] ** 2 / (len(b) - 1)
    freedom = sum(parts) ** 2 / spread if spread else len(a) + len(b) - 2
    gap = second.mean - first.mean
    return _difference(first.mean, second.mean, gap, error, freedom, confidence, "Welch's t")


def _difference(
    a: float, b: float, gap: float, error: float, freedom: float, confidence: float, method: str
) -> SetDifference:
    half = t_quantile(0.5 + confidence / 2, freedom) * error
    if error == 0:
        p_value = 1.0 if gap == 0 else 0.0
    else:
        p_value = 2 * (1 - t_cdf(abs(gap) / error, freedom))
    return SetDifference(a, b, gap, gap - half, gap + half, p_value, method)


def t_cdf(t: float, freedom: float) -> float:
    """Student's distribution function: 1 − ½·I(ν/(ν + t²); ν/2, ½) for t ≥ 0."""
    if t == 0:
        return 0.5
    tail = 0.5 * _incomplete_beta(freedom / (freedom + t * t), freedom / 2, 0.5)
    return 1 - tail if t > 0 else tail


@lru_cache(maxsize=256)
def t_quantile(probability: float, freedom: float) -> float:
    """The t below which a share of Student's distribution lies, by bisection."""
    low, high = 0.0, 1.0
    if probability < 0.5:
        return -t_quantile(1 - probability, freedom)
    while t_cdf(high, freedom) < probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if t_cdf(middle, freedom) < probability else (low, middle)
    return (low + high) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """The regularized incomplete beta function, by Lentz's continued fraction."""
    if x in (0.0, 1.0):
        return x
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    tiny = 1e-300
    c, d = 1.0, 1 / max(1 - (a + b) * x / (a + 1), tiny)
    fraction = d
    for m in range(1, 500):
        for numerator in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + numerator * d or tiny)
            c = 1 + numerator / c or tiny
            fraction *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return math.exp(log_front) * fraction / a
