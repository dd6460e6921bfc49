"""Mean cross entropy of predicted probabilities."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from recgrad.kernels import cached_njit
from recgrad.limits import Range
from recgrad.metrics import METRICS, TRAIN_METRICS
from recgrad.metrics.base import (
    Metric,
    Value,
    check_soft_labels,
    class_scores_of,
    probabilities_of,
    target_of,
)
from recgrad.metrics.pairs import Floats
from recgrad.metrics.ranking import classes_of


@TRAIN_METRICS.register("log_loss")
@METRICS.register("log_loss")
class LogLoss(Metric):
    """Mean of −y·log p − (1−y)·log(1−p), p held in [eps, 1−eps]; natural logarithms.

    Labels may lie anywhere in [0, 1]. Of more than two classes: the mean of −log p of the
    row's class. nan without rows.

    Args:
        eps: how near to 0 and 1 probabilities may come.
        num_class: classes of the task.
    """

    higher_is_better = False
    total: Tensor
    rows: Tensor

    def __init__(
        self, *, eps: Annotated[float, Range("(0, 0.5)")] = 1e-7, num_class: int = 1, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.eps, self.num_class = eps, num_class
        self.add_sum("total")
        self.add_sum("rows", dtype=torch.int64)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in probabilities [rows] or [rows, classes], and labels [rows]."""
        labels: Tensor
        if self.num_class > 2:
            scores = class_scores_of(preds, self.num_class, self.name)
            own = scores.gather(1, classes_of(target, scores, self.name)[:, None])
            preds = probabilities_of(own, self.name)
            labels = torch.ones_like(preds)
        else:
            preds = probabilities_of(preds, self.name)
            labels = check_soft_labels(target_of(target, len(preds), self.name), self.name)
        self.total = self.total + entropy_sum(preds, labels, self.eps)
        self.rows = self.rows + len(preds)

    def measure(self) -> Value:
        """The log loss of all rows so far."""
        return self.total / self.rows if self.rows else self.undefined("there are no rows")


def entropy_sum(preds: Tensor, labels: Tensor, eps: float) -> Tensor:
    """Σ −y·log p − (1−y)·log(1−p) in float64, p held in [eps, 1−eps]."""
    p, y = preds.double(), labels.double()
    if p.device.type == "cpu":
        return torch.tensor(_entropy_sum(p.numpy(), y.numpy(), eps), dtype=torch.float64)
    p = p.clamp(eps, 1 - eps)
    return -(y * p.log() + (1 - y) * torch.log1p(-p)).sum()


# On one thread, for the reason given at the counts of AUC.
@cached_njit()
def _entropy_sum(p: Floats, y: Floats, eps: float) -> float:
    total = 0.0
    for row in range(len(p)):
        held = min(max(p[row], eps), 1 - eps)
        if y[row] > 0:
            total -= y[row] * np.log(held)
        if y[row] < 1:
            total -= (1 - y[row]) * np.log1p(-held)
    return total
