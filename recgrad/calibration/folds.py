"""Calibrated scores of rows by maps that were fitted on other rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from recgrad.calibration.isotonic import Floats
from recgrad.calibration.stored import Map

FOLDS = 5
FEWEST = 10
"""Rows of each class from which on a map is tried on rows that it has not seen."""


def enough_rows(labels: Floats) -> bool:
    """Whether there are rows of both classes in each fold."""
    positives = int((labels > 0.5).sum())
    return min(positives, len(labels) - positives) >= FEWEST


def calibrated_elsewhere(fit: Callable[[Floats, Floats], Map], scores: Floats, labels: Floats) -> Floats:
    """The score of each row by a map fitted on the other four fifths, both classes in each fold."""
    rng = np.random.default_rng(0)
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order] > 0.5, kind="stable")]
    fold = np.empty(len(labels), np.int64)
    fold[order] = np.arange(len(labels)) % FOLDS
    found = np.empty(len(scores))
    for one in range(FOLDS):
        own = fold == one
        found[own] = fit(scores[~own], labels[~own]).apply(scores[own].astype(np.float32))
    return found
