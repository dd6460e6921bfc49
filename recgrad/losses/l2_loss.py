"""Squared error."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor

from recgrad.losses import LOSSES
from recgrad.losses.base import Loss


@LOSSES.register("l2_loss")
class L2Loss(Loss):
    """(z − y)²: the mean squared error of the output z itself."""

    predicts: ClassVar[Literal["probabilities", "values"]] = "values"

    def rows(self, logits: Tensor, labels: Tensor, session: Tensor | None) -> Tensor:
        """The squared error of each row."""
        return (logits - labels.to(logits.device, logits.dtype, non_blocking=True)).square()

    def predict(self, logits: Tensor) -> Tensor:
        """The output itself, [rows]."""
        return logits.reshape(logits.shape[0])
