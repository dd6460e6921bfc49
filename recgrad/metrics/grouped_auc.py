"""AUC within groups, such as within each user's impressions."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from recgrad.metrics import METRICS
from recgrad.metrics.base import Metric, Value, binary_of, scores_of
from recgrad.metrics.keys import Keys, keys_of
from recgrad.metrics.pairs import Floats, Ints, auc_by_group, group_starts

Weighting = Literal["NONE", "IMPRESSIONS", "POSITIVES"]


@METRICS.register("grouped_auc")
class GroupedAUC(Metric):
    """Mean over groups of the AUC within the group; groups of one class are left out.

    Keeps every row of every rank: 17 bytes a row, and about 70 while computing; no cost
    by group. nan when no group has both classes.

    Args:
        grouping_key: the field of the groups.
        weighting: NONE counts every group once, IMPRESSIONS by its rows, POSITIVES by its
            positives.
    """

    higher_is_better = True
    num_classes: ClassVar[tuple[int, int | None]] = (1, 2)
    needs_key = True

    def __init__(
        self, *, grouping_key: str | None = None, weighting: Weighting = "NONE", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.grouping_key, self.weighting = grouping_key, weighting
        self.add_rows("scores", torch.float64)
        self.add_rows("labels", torch.uint8)
        self.add_rows("keys", torch.int64)

    def update(self, preds: Tensor, target: Tensor, key: Keys) -> None:
        """Take in scores [rows], labels 0/1 [rows] and the group of each row, integers or strings."""
        preds = scores_of(preds, self.name)
        labels = binary_of(target, len(preds), self.name)
        self.keep(scores=preds, labels=labels, keys=keys_of(key, len(preds), self.name).to(preds.device))

    def measure(self) -> Value:
        """The grouped AUC of all rows so far."""
        value = grouped_auc(
            self.column("scores"), self.column("labels") != 0, self.column("keys"), self.weighting
        )
        return self.scalar(value) if value == value else self.undefined("no group has rows of both classes")


def grouped_auc(scores: Floats, positive: Any, keys: Ints, weighting: str = "NONE") -> float:
    """Weighted mean over groups of their AUC; nan when no group has both classes."""
    order = np.argsort(keys)
    starts = group_starts(keys[order])
    auc, positives = auc_by_group(scores[order], positive[order], starts)
    defined = ~np.isnan(auc)
    if not defined.any():
        return float("nan")
    weights = group_weights(weighting, np.diff(starts), positives)
    return float(np.average(auc[defined], weights=weights[defined]))


def group_weights(weighting: str, rows: Ints, positives: Ints) -> Floats:
    """The weight of each group, by its rows and its positives."""
    weights = {"NONE": np.ones_like(rows), "IMPRESSIONS": rows, "POSITIVES": positives}[weighting]
    return weights.astype(np.float64)
