"""Cross entropy relative to that of the base rate (He et al., 2014)."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from recgrad.limits import Range
from recgrad.metrics import METRICS, TRAIN_METRICS
from recgrad.metrics.base import Metric, Value, check_soft_labels, probabilities_of, target_of
from recgrad.metrics.log_loss import entropy_sum


@TRAIN_METRICS.register("normalized_entropy")
@METRICS.register("normalized_entropy")
class NormalizedEntropy(Metric):
    """Mean cross entropy / entropy of the mean label; below 1 is better than the base rate.

    The mean label is held in [eta, 1−eta]: when all labels are 0 or all are 1 the value is finite, though
    very large, since predicting the one class is nearly free. nan without rows.

    Args:
        eta: probabilities and the mean label are held in [eta, 1−eta].
    """

    higher_is_better = False
    num_classes: ClassVar[tuple[int, int | None]] = (1, 2)
    total: Tensor
    labels: Tensor
    rows: Tensor

    def __init__(self, *, eta: Annotated[float, Range("(0, 0.5)")] = 1e-12, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.eta = eta
        self.add_sum("total")
        self.add_sum("labels")
        self.add_sum("rows", dtype=torch.int64)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in probabilities [rows] and labels [rows]."""
        preds = probabilities_of(preds, self.name)
        labels = check_soft_labels(target_of(target, len(preds), self.name), self.name)
        self.total = self.total + entropy_sum(preds, labels, self.eta)
        self.labels = self.labels + labels.sum(dtype=torch.float64)
        self.rows = self.rows + len(preds)

    def measure(self) -> Value:
        """The normalized entropy of all rows so far."""
        if not self.rows:
            return self.undefined("there are no rows")
        rate = self.labels / self.rows
        held = rate.clamp(self.eta, 1 - self.eta)
        base = -(rate * held.log() + (1 - rate) * torch.log1p(-held))
        return self.total / self.rows / base

    def value_of_sums(self, sums: Tensor) -> Value:
        """The value of such sums; nan for one class, whose huge value would stay long in a decayed mean."""
        _, labels, rows = sums
        return super().value_of_sums(sums) if 0 < labels < rows else self.scalar(float("nan"))
