"""Area under the ROC curve."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from recgrad.errors import RecgradError
from recgrad.kernels import cached_njit
from recgrad.limits import Range
from recgrad.metrics import METRICS
from recgrad.metrics.base import Metric, Overruled, Value, binary_of, probabilities_of, scores_of
from recgrad.metrics.pairs import Floats, Ints, binned_auc, exact_auc

LOGIT_RANGE = 20.0
BINS_PER_THRESHOLD = 64
Thresholds = Annotated[int, Range("[2, ∞)")]


@METRICS.register("auc")
class AUC(Metric):
    """P(score of a random positive > score of a random negative); ties count ½.

    By default scores are probabilities, counted in 64·thresholds bins of equal width in
    logit space (200 thresholds: 12,800 bins 0.003 wide over logits ±20, 200 kB), and a
    pair in one bin counts ½. Bins equal in probability would put all scores of a model of
    rare clicks in a few of them; these stay within 10⁻³ of the exact value, and mostly 10⁻⁵.
    Only scores that lie closer than a bin tie: a model whose logits all fall within a few
    hundredths wants more thresholds, or `exact`.

    With `exact`, scores may be any numbers and every row is kept: 9 bytes a row, and about
    45 while computing. nan without both classes.

    Args:
        thresholds: the resolution of the bins.
        exact: keep all rows.
    """

    higher_is_better = True
    num_classes: ClassVar[tuple[int, int | None]] = (1, 2)
    instead: ClassVar[str] = "multiclass_auc"
    keeps_rows_with: ClassVar[tuple[str, ...]] = ("exact",)
    overruled: ClassVar[tuple[Overruled, ...]] = (Overruled("exact", ("thresholds",)),)
    counts: Tensor

    def __init__(self, *, thresholds: Thresholds = 200, exact: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.thresholds, self.exact = thresholds, exact
        if exact:
            self.add_rows("scores", torch.float64)
            self.add_rows("labels", torch.uint8)
        else:
            self.add_sum("counts", (2, thresholds * BINS_PER_THRESHOLD), torch.int64)

    def update(self, preds: Tensor, target: Tensor) -> None:
        """Take in scores [rows] and labels 0/1 [rows]."""
        if self.exact:
            preds = scores_of(preds, self.name)
            self.keep(scores=preds, labels=binary_of(target, len(preds), self.name))
        else:
            self.counts = self.counts + bin_counts(preds, target, self.counts.shape[1], self.name)

    def measure(self) -> Value:
        """The AUC of all rows so far."""
        if self.exact:
            value = exact_auc(self.column("scores"), self.column("labels") != 0)
        else:
            negatives, positives = self.counts.cpu().numpy().astype(np.float64)
            value = binned_auc(negatives, positives)
        return self.scalar(value) if value == value else self.undefined(one_class_reason())


def one_class_reason() -> str:
    """Why an AUC is undefined."""
    return "the rows are all of one class, or there are none"


def bin_counts(preds: Tensor, target: Tensor, bins: int, name: str) -> Tensor:
    """Rows by label and by bin of the logit of their score, int64 [2, bins]."""
    try:
        preds = probabilities_of(preds, name)
    except RecgradError as error:
        raise type(error)(f"{error}; set exact to rank by scores of any scale") from error
    labels = binary_of(target, len(preds), name)
    if preds.device.type == "cpu":
        return torch.from_numpy(_count(preds.double().numpy(), labels.numpy(), bins))
    place = logit_bins(preds, bins) + bins * labels.long()
    return torch.bincount(place, minlength=2 * bins).reshape(2, bins)


def logit_bins(probabilities: Tensor, bins: int) -> Tensor:
    """The bin of each probability, of bins of equal width in logit space."""
    place = torch.logit(probabilities.double()).add_(LOGIT_RANGE).mul_(bins / (2 * LOGIT_RANGE))
    return place.clamp_(0, bins - 1).long()


# Torch would split a batch's logarithms over threads, and on a busy machine wait for them
# longer than the whole count takes on one.
@cached_njit(error_model="numpy")
def _count(probabilities: Floats, labels: npt.NDArray[np.int8], bins: int) -> Ints:
    """Rows by label and bin, [2, bins]."""
    counts = np.zeros((2, bins), dtype=np.int64)
    scale = bins / (2 * LOGIT_RANGE)
    for row in range(len(probabilities)):
        logit = np.log(probabilities[row] / (1 - probabilities[row]))
        place = min(max((logit + LOGIT_RANGE) * scale, 0.0), bins - 1.0)
        counts[labels[row], int(place)] += 1
    return counts
