"""Cross entropy over classes."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from recgrad.errors import DataError
from recgrad.limits import Share
from recgrad.losses import LOSSES
from recgrad.losses.base import Loss


@LOSSES.register("softmax_cross_entropy")
class SoftmaxCrossEntropy(Loss):
    """−log softmax(z)[y], from logits [rows, classes] and class numbers y.

    Label smoothing ε puts 1−ε+ε/classes on y and ε/classes on every other class.
    """

    num_logits: ClassVar[int | None] = None

    def __init__(self, *, label_smoothing: Share = 0.0) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing

    def rows(self, logits: Tensor, labels: Tensor, session: Tensor | None) -> Tensor:
        """The cross entropy of each row."""
        classes = class_labels(labels, logits, "softmax_cross_entropy")
        return F.cross_entropy(logits, classes, reduction="none", label_smoothing=self.label_smoothing)

    def predict(self, logits: Tensor) -> Tensor:
        """Softmax over classes, [rows, classes]."""
        return logits.softmax(dim=1)


def class_labels(labels: Tensor, logits: Tensor, name: str) -> Tensor:
    """Labels as class numbers on the logits' device; on the host, one that is no class is an error."""
    classes, num_class = labels.long(), logits.shape[1]
    if labels.device.type == "cpu" and labels.numel() and not torch.compiler.is_compiling():
        wrong = (classes < 0) | (classes >= num_class) | (classes != labels)
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise DataError(
                f"{name}: label {labels[row].item():g} at row {row} of the batch is not a class "
                f"0 … {num_class - 1}; num_class must be larger than every label"
            )
    return classes.to(logits.device, non_blocking=True)
