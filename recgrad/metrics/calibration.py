"""How far predicted probabilities are from observed rates."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from recgrad.limits import Count
from recgrad.metrics import METRICS, TRAIN_METRICS
from recgrad.metrics.base import Metric, Value, check_soft_labels, probabilities_of, target_of


@TRAIN_METRICS.register("calibration")
@METRICS.register("calibration")
class Calibration(Metric):
    """`ratio`: mean prediction / mean label. `ece`: expected calibration error.

    ece = Σ over bins of (share of rows)·|mean prediction − mean label|, the bins of equal
    width in probability. The ratio is nan when no label is above 0; both are without rows.
    """

    num_classes: ClassVar[tuple[int, int | None]] = (1, 2)

    bins: Tensor

    def __init__(self, *, num_bins: Count = 20, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.num_bins = num_bins
        self.add_sum("bins", (3, num_bins))

    @property
    def value_names(self) -> list[str]:
        """Those of the ratio and of the error."""
        return [f"{part}_{self.display_name}" for part in ("ratio", "ece")]

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in probabilities [rows] and labels [rows]."""
        preds = probabilities_of(preds, self.name).double()
        labels = check_soft_labels(target_of(target, len(preds), self.name), self.name).double()
        place = (preds * self.num_bins).long().clamp_(max=self.num_bins - 1)
        columns = [torch.ones_like(preds), preds, labels]
        self.bins = self.bins + torch.stack(
            [torch.bincount(place, weights=column, minlength=self.num_bins) for column in columns]
        )

    def measure(self) -> Value:
        """Ratio and ece of all rows so far."""
        rows, predicted, observed = self.bins
        if not rows.sum():
            nan = self.undefined("there are no rows")
            return {"ratio": nan, "ece": nan}
        ratio = predicted.sum() / observed.sum()
        if not observed.sum():
            ratio = self.undefined("no label is above 0, so there is no ratio")
        return {"ratio": ratio, "ece": (predicted - observed).abs().sum() / rows.sum()}
