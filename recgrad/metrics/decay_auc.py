"""AUC of recent training batches."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor

from recgrad.limits import Count, Share, keep_limits
from recgrad.metrics import TRAIN_METRICS
from recgrad.metrics.auc import BINS_PER_THRESHOLD, Thresholds, bin_counts, one_class_reason
from recgrad.metrics.base import Metric, Value
from recgrad.metrics.pairs import binned_auc


@TRAIN_METRICS.register("auc")
@keep_limits
class DecayAUC(Metric):
    """AUC of counts that fade: every decay_step updates, counts = decay·counts + (1−decay)·new.

    The first window counts whole, and until it ends the value is that of the rows so far.
    Bins are those of AUC; the state is 64·thresholds bins of two counts, twice (400 kB for
    200). update() talks to no other process: counts fade on each rank alike.
    """

    num_classes: ClassVar[tuple[int, int | None]] = (1, 2)
    instead: ClassVar[str] = "multiclass_auc"
    counts: Tensor
    window: Tensor
    steps: Tensor

    def __init__(
        self, *, thresholds: Thresholds = 200, decay_rate: Share = 0.9, decay_step: Count = 100, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.decay_rate, self.decay_step = decay_rate, decay_step
        shape = (2, thresholds * BINS_PER_THRESHOLD)
        self.add_sum("counts", shape)
        self.add_sum("window", shape, torch.int64)
        self.declare("steps", torch.tensor(0), "max")

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in a batch: probabilities [rows] and labels 0/1 [rows]."""
        self.window += bin_counts(preds, target, self.window.shape[1], self.name)
        self.steps += 1
        if self.steps % self.decay_step == 0:
            new = self.window.double()
            first = self.steps == self.decay_step
            self.counts = new if first else self.decay_rate * self.counts + (1 - self.decay_rate) * new
            self.window = torch.zeros_like(self.window)

    def forward(self, preds: Tensor, target: Tensor) -> Value:
        """Take in a batch and return the decayed value."""
        self.update(preds, target)
        return self.compute()

    def measure(self) -> Value:
        """The AUC of the faded counts."""
        counts = self.counts if self.steps >= self.decay_step else self.window.double()
        value = binned_auc(*counts.cpu().numpy())
        return self.scalar(value) if value == value else self.undefined(one_class_reason())
