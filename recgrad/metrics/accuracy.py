"""Share of rows whose class is predicted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recgrad.limits import Count, Fraction
from recgrad.metrics import METRICS, TRAIN_METRICS
from recgrad.metrics.base import Metric, Value, binary_of, class_scores_of, probabilities_of
from recgrad.metrics.ranking import places_of_index

THRESHOLD = 0.5


@TRAIN_METRICS.register("accuracy")
@METRICS.register("accuracy")
class Accuracy(Metric):
    """Share of rows predicted right; nan without rows.

    Of one or two classes: the label is (prediction > threshold). Of more: the label is among
    the top_k classes; classes tied at the edge share the places that are left.

    Args:
        threshold: probability above which a row is predicted positive.
        top_k: places that count.
        num_class: classes of the task.
    """

    higher_is_better = True
    right: Tensor
    rows: Tensor

    def __init__(
        self, *, threshold: Fraction = THRESHOLD, top_k: Count = 1, num_class: int = 1, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        most = max(1, num_class - 1)
        if top_k > most:
            raise ValueError(f"top_k must be at most {most} with num_class {num_class}, got {top_k}")
        if num_class > 2 and threshold != THRESHOLD:
            raise ValueError(f"threshold is for num_class 1 or 2, got {num_class}; use top_k")
        self.threshold, self.top_k, self.num_class = threshold, top_k, num_class
        self.add_sum("right")
        self.add_sum("rows", dtype=torch.int64)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in probabilities [rows] or [rows, classes], and labels [rows]."""
        if self.num_class <= 2:
            preds = probabilities_of(preds, self.name)
            right = (preds > self.threshold) == binary_of(target, len(preds), self.name).bool()
        else:
            preds = class_scores_of(preds, self.num_class, self.name)
            above, tied = places_of_index(preds, target, self.name)
            right = ((self.top_k - above.double()) / tied).clamp(0, 1)
        self.right = self.right + right.sum(dtype=torch.float64)
        self.rows = self.rows + len(preds)

    def measure(self) -> Value:
        """The accuracy of all rows so far."""
        return self.right / self.rows if self.rows else self.undefined("there are no rows")
