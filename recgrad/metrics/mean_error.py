"""Means over rows of an error: what the metrics of regression have in common."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from recgrad.metrics.base import Metric, Value, finite_target, values_of


class MeanError(Metric):
    """Mean of a function of prediction − label; nan without rows."""

    higher_is_better = False
    compares: ClassVar[Literal["probabilities", "values", "ranks"]] = "values"
    total: Tensor
    rows: Tensor

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.add_sum("total")
        self.add_sum("rows", dtype=torch.int64)

    def error(self, difference: Tensor) -> Tensor:
        """The error of each row, float64, from its prediction − label."""
        raise NotImplementedError

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in predictions [rows] and labels [rows]."""
        preds = values_of(preds, self.name)
        difference = preds.double() - finite_target(target, len(preds), self.name).double()
        self.total = self.total + self.error(difference).sum()
        self.rows = self.rows + len(preds)

    def measure(self) -> Value:
        """The error of all rows so far."""
        return self.total / self.rows if self.rows else self.undefined("there are no rows")
