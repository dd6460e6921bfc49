"""The difference of a metric between two models on the same rows, with an interval."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist

import numba
import numpy as np
import numpy.typing as npt

from recgrad.errors import RecgradError
from recgrad.kernels import cached_njit
from recgrad.metrics.grouped_auc import group_weights
from recgrad.metrics.pairs import Floats, Ints, auc_by_group

Mask = npt.NDArray[np.bool_]

MAX_UNITS = 100_000
HIGHER_IS_BETTER = {"auc": True, "grouped_auc": True, "log_loss": False}


@dataclass(frozen=True)
class Difference:
    """One metric of both models and the interval of B − A.

    Attributes:
        metric: auc, grouped_auc or log_loss.
        a: its value for A.
        b: its value for B.
        difference: b − a.
        low: lower end of the interval of the difference.
        high: upper end.
        p_value: two-sided, of no difference.
        method: how the interval was made.
    """

    metric: str
    a: float
    b: float
    difference: float
    low: float
    high: float
    p_value: float
    method: str

    @property
    def winner(self) -> str | None:
        """ "A" or "B" when the interval excludes 0, else None."""
        if not (self.low > 0 or self.high < 0):
            return None
        return "B" if (self.difference > 0) == HIGHER_IS_BETTER[self.metric] else "A"


def delong(positive: Mask, scores: Floats) -> tuple[Floats, Floats]:
    """AUCs of several models, and the influence of each row on each, both [models, …].

    The influence of a positive is (share of negatives below it − AUC) / positives, that of a
    negative (share of positives above it − AUC) / negatives, ties ½. Their sum of squares
    is DeLong's variance but for factors n/(n−1).
    """
    n_pos, n_neg = int(positive.sum()), int((~positive).sum())
    aucs, influence = np.empty(len(scores)), np.empty(scores.shape)
    for i, row in enumerate(scores):
        everyone, pos, neg = _midranks(row), _midranks(row[positive]), _midranks(row[~positive])
        below = (everyone[positive] - pos) / n_neg
        above = 1 - (everyone[~positive] - neg) / n_pos
        aucs[i] = below.mean()
        influence[i, positive] = (below - aucs[i]) / n_pos
        influence[i, ~positive] = (above - aucs[i]) / n_neg
    return aucs, influence


def auc_difference(
    positive: Mask, scores: Floats, clusters: Ints, confidence: float, method: str
) -> Difference:
    """The difference in AUC with DeLong's interval.

    Args:
        positive: labels, [rows].
        scores: of both models, [2, rows].
        clusters: the group of each row, 0, 1, … in order; rows of a group are not independent.
        confidence: of the interval.
        method: what the interval is called.
    """
    n_pos, n_neg = int(positive.sum()), int((~positive).sum())
    if min(n_pos, n_neg) < 2:
        raise RecgradError(
            f"compare: needs at least 2 rows of each class, got {n_pos} positive and {n_neg} negative"
        )
    (a, b), influence = delong(positive, scores)
    effect = influence[1] - influence[0]
    if clusters[-1] == len(clusters) - 1:
        variance = float(
            np.sum(effect[positive] ** 2) * n_pos / (n_pos - 1)
            + np.sum(effect[~positive] ** 2) * n_neg / (n_neg - 1)
        )
    else:
        count = int(clusters[-1]) + 1
        if count < 2:
            raise RecgradError("compare: all rows are of one group; leave the group out")
        variance = float(np.sum(np.bincount(clusters, weights=effect) ** 2) * count / (count - 1))
    spread = math.sqrt(variance)
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * spread
    difference = float(b - a)
    p_value = (
        1.0 if difference == 0 else 0.0 if spread == 0 else math.erfc(abs(difference) / spread / math.sqrt(2))
    )
    return Difference(
        "auc", float(a), float(b), difference, difference - reach, difference + reach, p_value, method
    )


def grouped_auc_difference(
    positive: Mask, scores: Floats, starts: Ints, weighting: str, draws: Bootstrap
) -> Difference | None:
    """The difference in grouped AUC, groups drawn; None when no group has both classes."""
    (a, positives), (b, _) = (auc_by_group(row, positive, starts) for row in scores)
    defined = ~np.isnan(a)
    if not defined.any():
        return None
    weights = group_weights(weighting, np.diff(starts), positives)[defined]
    return draws.ratio(
        "grouped_auc", weights * a[defined], weights * b[defined], weights, "bootstrap of groups"
    )


def log_loss_difference(
    positive: Mask, scores: Floats, clusters: Ints, draws: Bootstrap, method: str
) -> Difference:
    """The difference in mean log loss, groups of rows drawn."""
    p = np.clip(scores, 1e-7, 1 - 1e-7)
    losses = -np.where(positive, np.log(p), np.log1p(-p))
    a, b, rows = (
        np.bincount(clusters, weights=column).astype(np.float64)
        for column in (*losses, np.ones(len(positive)))
    )
    return draws.ratio("log_loss", a, b, rows, method)


@dataclass(frozen=True)
class Bootstrap:
    """Percentile intervals of differences of ratios of sums over independent units."""

    confidence: float
    num_resamples: int
    seed: int

    def ratio(self, metric: str, a: Floats, b: Floats, weights: Floats, method: str) -> Difference:
        """Σa/Σweights against Σb/Σweights, units drawn with replacement, the same for both."""
        total = weights.sum()
        value_a, value_b = a.sum() / total, b.sum() / total
        units = _blocks(np.stack([b - a, weights], axis=1).astype(np.float64))
        sampled = _resampled(units, self.num_resamples, np.uint64(self.seed))
        tail = (1 - self.confidence) / 2
        low, high = np.quantile(sampled, [tail, 1 - tail])
        worse = 1 + min(int((sampled <= 0).sum()), int((sampled >= 0).sum()))
        p_value = min(1.0, 2 * worse / (self.num_resamples + 1))
        difference = float((b - a).sum() / total)
        return Difference(
            metric, float(value_a), float(value_b), difference, float(low), float(high), p_value, method
        )


def _blocks(units: Floats) -> Floats:
    """Sums of at most MAX_UNITS blocks of units.

    Blocks of independent units are independent, and a ratio of sums varies as much when they
    are drawn as when units are; so the cost of the bootstrap does not grow with the rows.
    """
    if len(units) <= MAX_UNITS:
        return units
    block = np.arange(len(units)) % MAX_UNITS
    return np.stack([np.bincount(block, weights=column) for column in units.T], axis=1)


@cached_njit(parallel=True)
def _resampled(units: Floats, num_resamples: int, seed: np.uint64) -> Floats:
    """Σ difference / Σ weight over as many units drawn with replacement (splitmix64 by resample)."""
    n = len(units)
    found = np.empty(num_resamples)
    for resample in numba.prange(num_resamples):
        state = (seed * np.uint64(0xD1342543DE82EF95)) ^ (
            np.uint64(resample + 1) * np.uint64(0xA0761D6478BD642F)
        )
        difference, weight = 0.0, 0.0
        for _ in range(n):
            state += np.uint64(0x9E3779B97F4A7C15)
            mixed = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            unit = np.int64(((mixed >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))
            difference += units[unit, 0]
            weight += units[unit, 1]
        found[resample] = difference / weight if weight > 0 else 0.0
    return found


def _midranks(values: Floats) -> Floats:
    """Ranks from 1, equal values sharing their mean rank."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Floats = (last - (counts - 1) / 2)[inverse]
    return ranks
