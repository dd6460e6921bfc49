"""Focal loss (Lin et al., 2017, arXiv:1708.02002)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from recgrad.limits import Inside, Rate
from recgrad.losses import LOSSES
from recgrad.losses.base import Loss, binary_labels


@LOSSES.register("binary_focal_loss")
class BinaryFocalLoss(Loss):
    """α·y·(1−p)^γ·(−log p) + (1−α)·(1−y)·p^γ·(−log(1−p)), p = σ(z).

    Args:
        gamma: how much easy rows count less; 0 is α-balanced cross entropy.
        alpha: weight of positives; negatives weigh 1−α.
        detach_weight: take (1−p)^γ and p^γ as constants in the gradient, as TorchEasyRec does. The paper
            differentiates them.
    """

    labels: ClassVar[Literal["binary", "classes", "numbers"]] = "binary"

    def __init__(self, *, gamma: Rate = 2.0, alpha: Inside = 0.5, detach_weight: bool = True) -> None:
        super().__init__()
        self.gamma, self.alpha, self.detach_weight = gamma, alpha, detach_weight

    def rows(self, logits: Tensor, labels: Tensor, session: Tensor | None) -> Tensor:
        """The focal loss of each row."""
        labels = binary_labels(labels, logits, "binary_focal_loss")
        log_p, log_q = F.logsigmoid(logits), F.logsigmoid(-logits)
        # Powers through the logarithms: exact in both tails, where 1−p has lost its digits.
        of_positive, of_negative = torch.exp(self.gamma * log_q), torch.exp(self.gamma * log_p)
        if self.detach_weight:
            of_positive, of_negative = of_positive.detach(), of_negative.detach()
        positive = self.alpha * labels * of_positive * log_p
        negative = (1 - self.alpha) * (1 - labels) * of_negative * log_q
        return -(positive + negative)

    def predict(self, logits: Tensor) -> Tensor:
        """σ(z), [rows]."""
        return logits.reshape(logits.shape[0]).sigmoid()
