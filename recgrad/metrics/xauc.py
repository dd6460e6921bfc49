"""Share of pairs of rows that the prediction orders as the label does."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from recgrad.limits import Count, Range
from recgrad.metrics import METRICS, TRAIN_METRICS
from recgrad.metrics.base import Metric, Overruled, Value, finite_target, values_of
from recgrad.metrics.pairs import concordance, sampled_concordance


@TRAIN_METRICS.register("xauc")
@METRICS.register("xauc")
class XAUC(Metric):
    """P(prediction orders a random pair as the label does), for real labels such as watch time.

    Pairs of equal labels do not count; equal predictions count ½. With binary labels it is
    the AUC. nan when no two labels differ.

    All rows are kept: 16 bytes a row, and about 60 while computing; with `in_batch` two
    numbers. A sample that would cost more than the exact value (16 pairs a row) is not
    drawn: the exact value is taken. The sample is the same on any number of processes.

    Args:
        sample_ratio: share of the n(n−1)/2 pairs to draw.
        max_pairs: how many pairs to draw instead.
        in_batch: count all pairs of rows of the same update(), and no others.
        exact: count all pairs.
    """

    higher_is_better = True
    compares: ClassVar[Literal["probabilities", "values", "ranks"]] = "values"
    keeps_rows_with: ClassVar[tuple[str, ...]] = ("exact",)
    overruled: ClassVar[tuple[Overruled, ...]] = (
        Overruled("exact", ("sample_ratio", "max_pairs", "in_batch")),
        Overruled("in_batch", ("sample_ratio", "max_pairs"), harmless=("sample_ratio",)),
        Overruled("max_pairs", ("sample_ratio",), harmless=("sample_ratio",)),
    )
    wins: Tensor
    pairs: Tensor

    def __init__(
        self,
        *,
        sample_ratio: Annotated[float, Range("(0, 1]")] = 1e-3,
        max_pairs: Count | None = None,
        in_batch: bool = False,
        exact: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if exact and (in_batch or max_pairs is not None):
            raise ValueError("exact counts all pairs: in_batch and max_pairs must not be set with it")
        if in_batch and max_pairs is not None:
            raise ValueError("in_batch counts all pairs of a batch: max_pairs must not be set with it")
        self.sample_ratio, self.max_pairs, self.in_batch, self.exact = (
            sample_ratio,
            max_pairs,
            in_batch,
            exact,
        )
        if in_batch:
            self.add_sum("wins", dtype=torch.int64)
            self.add_sum("pairs", dtype=torch.int64)
        else:
            self.add_rows("scores", torch.float64)
            self.add_rows("labels", torch.float64)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in predictions [rows] and labels [rows], any numbers."""
        preds = values_of(preds, self.name)
        labels = finite_target(target, len(preds), self.name)
        if self.in_batch:
            wins, pairs = concordance(preds.double().cpu().numpy(), labels.double().cpu().numpy())
            self.wins, self.pairs = self.wins + wins, self.pairs + pairs
        else:
            self.keep(scores=preds, labels=labels)

    def measure(self) -> Value:
        """The XAUC of all rows so far."""
        wins, pairs = self._counts()
        return self.scalar(wins / 2 / pairs) if pairs else self.undefined("no two rows differ in their label")

    def sums(self) -> Tensor:
        """Pairs ordered right, twice, and pairs that count, among this process's rows."""
        return torch.tensor(self._counts(), dtype=torch.float64, device=self.device)

    def value_of_sums(self, sums: Tensor) -> Value:
        """The XAUC of such counts."""
        return sums[0] / 2 / sums[1]

    def _counts(self) -> tuple[int, int]:
        if self.in_batch:
            return int(self.wins), int(self.pairs)
        scores, labels = self.column("scores"), self.column("labels")
        if self.exact:
            return concordance(scores, labels)
        draws = self.max_pairs
        if draws is None:
            draws = max(1, int(len(scores) * (len(scores) - 1) // 2 * self.sample_ratio))
        return sampled_concordance(scores, labels, draws)
