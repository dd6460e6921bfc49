"""AUC of each class against the rest."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from recgrad.errors import RecgradError
from recgrad.limits import Range
from recgrad.metrics import METRICS
from recgrad.metrics.auc import BINS_PER_THRESHOLD, Thresholds, logit_bins
from recgrad.metrics.base import Metric, Overruled, Value, class_scores_of
from recgrad.metrics.pairs import binned_auc, exact_auc
from recgrad.metrics.ranking import classes_of


@METRICS.register("multiclass_auc")
class MulticlassAUC(Metric):
    """Mean over classes of the AUC of (class or not) by the class's score.

    Classes without rows, or that are all rows, have no AUC: they are left out of the mean
    with a warning; nan when all are. Bins are those of AUC: 200 kB a class for 200
    thresholds. With `exact` every row is kept: 8 bytes a class and row.

    Args:
        num_class: classes of the task.
        thresholds: the resolution of the bins.
        average: macro counts every class once, weighted by its rows, none gives each by name.
        exact: keep all rows.
    """

    higher_is_better = True
    num_classes: ClassVar[tuple[int, int | None]] = (2, None)
    instead: ClassVar[str] = "auc"
    keeps_rows_with: ClassVar[tuple[str, ...]] = ("exact",)
    overruled: ClassVar[tuple[Overruled, ...]] = (Overruled("exact", ("thresholds",)),)
    counts: Tensor

    def __init__(
        self,
        *,
        num_class: Annotated[int, Range("[2, ∞)")],
        thresholds: Thresholds = 200,
        average: Literal["macro", "weighted", "none"] = "macro",
        exact: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.num_class, self.average, self.exact = num_class, average, exact
        self.bins = thresholds * BINS_PER_THRESHOLD
        if exact:
            self.add_rows("scores", torch.float64)
            self.add_rows("labels", torch.int64)
        else:
            self.add_sum("counts", (2, num_class, self.bins), torch.int64)

    @property
    def value_names(self) -> list[str]:
        """One for the mean, or one for each class."""
        if self.average != "none":
            return super().value_names
        return [f"class_{i}_{self.display_name}" for i in range(self.num_class)]

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in scores [rows, classes] and class numbers [rows]."""
        preds = class_scores_of(preds, self.num_class, self.name)
        labels = classes_of(target, preds, self.name)
        if self.exact:
            self.keep(scores=preds.reshape(-1), labels=labels)
            return
        if preds.numel() and (preds.min() < 0 or preds.max() > 1):
            raise RecgradError(
                f"{self.name}: predictions must be probabilities in [0, 1]; set exact to rank by other scores"
            )
        place = logit_bins(preds, self.bins) + self.bins * torch.arange(self.num_class, device=preds.device)
        place[torch.arange(len(labels), device=preds.device), labels] += self.num_class * self.bins
        found = torch.bincount(place.reshape(-1), minlength=self.counts.numel())
        self.counts = self.counts + found.reshape(self.counts.shape)

    def measure(self) -> Value:
        """The AUC of all rows so far."""
        if self.exact:
            scores, labels = self.column("scores").reshape(-1, self.num_class), self.column("labels")
            auc = np.array([exact_auc(scores[:, i], labels == i) for i in range(self.num_class)])
            rows = np.bincount(labels, minlength=self.num_class)
        else:
            rest, own = self.counts.cpu().numpy().astype(np.float64)
            auc = np.array([binned_auc(rest[i], own[i]) for i in range(self.num_class)])
            rows = own.sum(1)
        missing = np.flatnonzero(np.isnan(auc))
        if len(missing):
            self.undefined(f"classes {missing.tolist()} have no rows, or all, and so no AUC")
        if self.average == "none":
            return {f"class_{i}": self.scalar(value) for i, value in enumerate(auc)}
        defined = ~np.isnan(auc)
        if not defined.any():
            return self.scalar(float("nan"))
        weights = rows[defined] if self.average == "weighted" else None
        return self.scalar(float(np.average(auc[defined], weights=weights)))
