"""Mean absolute error."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recgrad.metrics import METRICS, TRAIN_METRICS
from recgrad.metrics.base import Metric, Value, finite_target, values_of


@TRAIN_METRICS.register("mean_absolute_error")
@METRICS.register("mean_absolute_error")
class MeanAbsoluteError(Metric):
    """Mean of |prediction − label|; nan without rows."""

    total: Tensor
    rows: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_sum("total")
        self.add_sum("rows", dtype=torch.int64)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in predictions [rows] and labels [rows]."""
        preds = values_of(preds, self.name)
        error = preds.double() - finite_target(target, len(preds), self.name).double()
        self.total = self.total + error.abs().sum()
        self.rows = self.rows + len(preds)

    def measure(self) -> Value:
        """The error of all rows so far."""
        return self.total / self.rows if self.rows else self.undefined("there are no rows")
