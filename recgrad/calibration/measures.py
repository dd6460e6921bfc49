"""How far probabilities are from what was observed."""

from __future__ import annotations

import numpy as np

from recgrad.calibration.isotonic import Floats

BINS = 20


def expected_calibration_error(scores: Floats, labels: Floats, bins: int = BINS) -> float:
    """Σ over bins of equal width of (share of rows)·|mean prediction − mean label|."""
    place = np.minimum((scores * bins).astype(np.int64), bins - 1)
    predicted = np.bincount(place, weights=scores, minlength=bins)
    observed = np.bincount(place, weights=labels, minlength=bins)
    return float(np.abs(predicted - observed).sum() / len(scores))


def log_loss(scores: Floats, labels: Floats, eps: float = 1e-7) -> float:
    """The mean of −y·log p − (1 − y)·log(1 − p), p kept `eps` away from 0 and 1."""
    p = np.clip(scores, eps, 1 - eps)
    return float(-np.mean(labels * np.log(p) + (1 - labels) * np.log1p(-p)))
