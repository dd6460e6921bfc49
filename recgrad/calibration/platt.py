"""Platt scaling: a line through the logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from recgrad.errors import DataError

Floats = npt.NDArray[np.float64]
_TINY = float(np.finfo(np.float32).tiny)
_MOST = float(np.nextafter(np.float32(1), np.float32(0)))
_STEPS, _HALVINGS = 100, 60


@dataclass(frozen=True)
class Platt:
    """p ↦ σ(slope · logit(p) + offset).

    Paper: Platt 1999, "Probabilistic outputs for support vector machines"
    """

    name: ClassVar[str] = "platt"

    slope: float
    offset: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.slope) and self.slope > 0 and np.isfinite(self.offset)):
            raise ValueError(f"slope must be above 0 and both finite, got {self.slope}, {self.offset}")

    def apply(self, scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """The calibrated probabilities of raw ones."""
        return sigmoid(self.slope * logits_of(scores) + self.offset).astype(np.float32)


def fit_platt(scores: Floats, labels: Floats) -> Platt:
    """The slope and offset of least log loss over rows, for labels in [0, 1] of which both ends are there.

    As Platt has it, labels are drawn in a little so that few rows cannot fit a step: 1 becomes
    (P + 1)/(P + 2) and 0 becomes 1/(N + 2), where P and N count positives and negatives. Newton's method
    with halved steps (Lin, Lin and Weng 2007); the loss is convex.

    Raises:
        DataError: the scores rank rows the wrong way round, so that no rising map would help.
    """
    x = logits_of(scores)
    positives = float(labels.sum())
    negatives = len(labels) - positives
    target = labels * (positives + 1) / (positives + 2) + (1 - labels) / (negatives + 2)
    weights = np.array([0.0, np.log((positives + 1) / (negatives + 1))])
    loss = _loss(x, target, weights)
    for _ in range(_STEPS):
        p = sigmoid(weights[0] * x + weights[1])
        error, curve = p - target, np.maximum(p * (1 - p), 1e-300)
        gradient = np.array([error @ x, error.sum()])
        if np.abs(gradient).max() < 1e-9 * len(x):
            break
        mixed = float(curve @ x)
        hessian = np.array([[curve @ (x * x), mixed], [mixed, curve.sum()]])
        hessian[[0, 1], [0, 1]] += 1e-12 * len(x)
        step = np.linalg.solve(hessian, gradient)
        for _ in range(_HALVINGS):
            tried = _loss(x, target, weights - step)
            if tried <= loss:
                break
            step = step / 2
        else:
            break
        weights, loss = weights - step, tried
    if not weights[0] > 0:
        raise DataError(
            f"the scores rank rows the wrong way round (slope {weights[0]:.3g}), which no calibration mends; "
            "look at the label, and at whether these are rows of the model's task"
        )
    return Platt(float(weights[0]), float(weights[1]))


def logits_of(scores: npt.NDArray[np.float32] | Floats) -> Floats:
    """log(p / (1 − p)) in float64, finite also for the float32 0 and 1."""
    p = np.clip(scores.astype(np.float64), _TINY, _MOST)
    return np.log(p) - np.log1p(-p)


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(−x)), without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1 + small)


def _loss(x: Floats, target: Floats, weights: Floats) -> float:
    """The sum of cross entropies with soft targets."""
    z = weights[0] * x + weights[1]
    return float((np.logaddexp(0, z) - target * z).sum())
