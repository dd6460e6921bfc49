"""XAUC within groups."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from recgrad.limits import Count
from recgrad.metrics import METRICS
from recgrad.metrics.base import Metric, Overruled, Value, finite_target, values_of
from recgrad.metrics.keys import Keys, keys_of
from recgrad.metrics.pairs import Floats, Ints, concordance_by_group, group_starts


@METRICS.register("grouped_xauc")
class GroupedXAUC(Metric):
    """Mean over groups of the XAUC within the group, weighted by the group's rows.

    Groups in which no two labels differ are left out; nan when all are. Keeps every row of
    every rank: 24 bytes a row, and about 85 while computing.

    Args:
        grouping_key: the field of the groups.
        max_pairs_per_group: a group with more pairs than this is judged by so many random
            ones, the same on any number of processes.
        exact: count all pairs of every group.
    """

    higher_is_better = True
    compares: ClassVar[Literal["probabilities", "values", "ranks"]] = "values"
    overruled: ClassVar[tuple[Overruled, ...]] = (Overruled("exact", ("max_pairs_per_group",)),)
    needs_key = True

    def __init__(
        self,
        *,
        grouping_key: str | None = None,
        max_pairs_per_group: Count = 100,
        exact: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.grouping_key, self.max_pairs_per_group, self.exact = grouping_key, max_pairs_per_group, exact
        self.add_rows("scores", torch.float64)
        self.add_rows("labels", torch.float64)
        self.add_rows("keys", torch.int64)

    def update(self, preds: Tensor, target: Tensor, key: Keys) -> None:
        """Take in predictions [rows], labels [rows] and the group of each row, integers or strings."""
        preds = values_of(preds, self.name)
        labels = finite_target(target, len(preds), self.name)
        self.keep(scores=preds, labels=labels, keys=keys_of(key, len(preds), self.name).to(preds.device))

    def measure(self) -> Value:
        """The grouped XAUC of all rows so far."""
        max_pairs = 0 if self.exact else self.max_pairs_per_group
        value = grouped_xauc(self.column("scores"), self.column("labels"), self.column("keys"), max_pairs)
        return (
            self.scalar(value) if value == value else self.undefined("no group has rows of different labels")
        )


def grouped_xauc(scores: Floats, labels: Floats, keys: Ints, max_pairs: int = 0) -> float:
    """Mean over groups of their XAUC by rows; nan when no group has a pair that counts."""
    order = np.lexsort((labels, keys))
    keys = keys[order]
    starts = group_starts(keys)
    wins, pairs = concordance_by_group(scores[order], labels[order], keys, starts, max_pairs)
    defined = pairs > 0
    if not defined.any():
        return float("nan")
    return float(np.average(wins[defined] / 2 / pairs[defined], weights=np.diff(starts)[defined]))
