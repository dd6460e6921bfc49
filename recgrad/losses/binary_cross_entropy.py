"""Binary cross entropy on logits."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor
from torch.nn import functional as F

from recgrad.limits import Share
from recgrad.losses import LOSSES
from recgrad.losses.base import Loss, binary_labels


@LOSSES.register("binary_cross_entropy")
class BinaryCrossEntropy(Loss):
    """−y·log σ(z) − (1−y)·log σ(−z), from the logit z.

    Label smoothing ε takes y(1−ε) + ε/2 for y. Labels may lie anywhere in [0, 1].
    """

    labels: ClassVar[Literal["binary", "classes", "numbers"]] = "binary"

    def __init__(self, *, label_smoothing: Share = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def rows(self, logits: Tensor, labels: Tensor, session: Tensor | None) -> Tensor:
        """The cross entropy of each row."""
        labels = binary_labels(labels, logits, "binary_cross_entropy")
        if self.label_smoothing:
            labels = labels * (1 - self.label_smoothing) + self.label_smoothing / 2
        return F.binary_cross_entropy_with_logits(logits, labels, reduction="none")

    def predict(self, logits: Tensor) -> Tensor:
        """σ(z), [rows]."""
        return logits.reshape(logits.shape[0]).sigmoid()
