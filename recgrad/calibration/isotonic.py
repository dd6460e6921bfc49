"""Isotonic regression: the rising steps that fit the labels best."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from recgrad.kernels import cached_njit

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Isotonic:
    """p ↦ the value at p of the line through (scores, rates); the first and last rate beyond its ends.

    Rows of one step get the same rate, so ranks differ from the raw ones by ties alone.

    Paper: Zadrozny and Elkan 2002, "Transforming classifier scores into accurate multiclass probability
    estimates"
    """

    name: ClassVar[str] = "isotonic"

    scores: tuple[float, ...]
    rates: tuple[float, ...]
    _line: tuple[Floats, Floats] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        x, y = np.array(self.scores, np.float64), np.array(self.rates, np.float64)
        if not len(x) or len(x) != len(y):
            raise ValueError(f"scores and rates must be equally many, got {len(x)} and {len(y)}")
        if not (np.diff(x) > 0).all() or not (np.diff(y) >= 0).all() or not 0 <= y[0] <= y[-1] <= 1:
            raise ValueError("scores must rise, and rates must not fall and be in [0, 1]")
        object.__setattr__(self, "_line", (x, y))

    def apply(self, scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The calibrated probabilities of raw ones."""
        return np.interp(scores, *self._line).astype(np.float32)


def fit_isotonic(scores: Floats, labels: Floats) -> Isotonic:
    """The steps of least squared error over rows; a rate stays 1/(n + 2) away from 0 and from 1.

    Without that, rows beyond the last positive would be given 0, and one positive among them an infinite
    log loss.
    """
    order = np.argsort(scores, kind="stable")
    x, starts = np.unique(scores[order], return_index=True)
    counts = np.diff(np.append(starts, len(scores))).astype(np.float64)
    means = np.add.reduceat(labels[order], starts) / counts
    values, firsts = pool_adjacent_violators(means, counts)
    lasts = np.append(firsts[1:], len(x)) - 1
    least = 1 / (len(labels) + 2)
    rates = np.clip(values, least, 1 - least)
    both = np.stack([firsts, lasts], axis=1).ravel()
    kept = np.append(True, np.diff(both) > 0)
    knots = both[kept]
    return Isotonic(tuple(x[knots].tolist()), tuple(np.repeat(rates, 2)[kept].tolist()))


def pool_adjacent_violators(means: Floats, counts: Floats) -> tuple[Floats, Ints]:
    """The values of the steps of the best rising fit to `means` with weights `counts`, and their firsts."""
    values, weights = np.empty_like(means), np.empty_like(means)
    firsts = np.empty(len(means), np.int64)
    size = _pool(means, counts, values, weights, firsts)
    return values[:size], firsts[:size]


@cached_njit()
def _pool(means: Floats, counts: Floats, values: Floats, weights: Floats, firsts: Ints) -> int:
    """Take rows one by one; a step that is not above the one before joins it."""
    size = 0
    for row in range(len(means)):
        value, weight, first = means[row], counts[row], row
        while size > 0 and values[size - 1] >= value:
            size -= 1
            both = weights[size] + weight
            value = (values[size] * weights[size] + value * weight) / both
            weight, first = both, firsts[size]
        values[size], weights[size], firsts[size] = value, weight, first
        size += 1
    return size
