"""Cross entropy over classes."""

from __future__ import annotations

from typing import ClassVar, Literal

from torch import Tensor
from torch.nn import functional as F

from recgrad.limits import Share
from recgrad.losses import LOSSES
from recgrad.losses.base import Loss, at_least_single, class_labels
from recgrad.losses.candidates import sampled_softmax, split_own
from recgrad.losses.chunked_softmax import chunked_softmax


@LOSSES.register("softmax_cross_entropy")
class SoftmaxCrossEntropy(Loss):
    """−log softmax(z)[y], from logits [rows, classes] and class numbers y.

    Label smoothing ε puts 1−ε+ε/classes on y and ε/classes on every other class.

    Two-tower models have candidates for classes, −inf where a row has none.

    Args:
        label_smoothing: ε.
        log_q_correction: for two-tower models: lower the score of each negative by the logarithm of how often
            it is expected among those drawn, so that popular items are not pushed down for being drawn
            often; the softmax then estimates that over the whole catalogue.
    """

    labels: ClassVar[Literal["binary", "classes", "numbers"]] = "classes"
    num_logits: ClassVar[int | None] = None
    takes_candidates: ClassVar[bool] = True

    def __init__(self, *, label_smoothing: Share = 0.0, log_q_correction: bool = False) -> None:
        super().__init__()
        self.label_smoothing = label_smoothing
        self.corrects_sampling = log_q_correction
        # Not where a class of one's own computes rows in another way.
        plain = type(self).rows is SoftmaxCrossEntropy.rows and type(self).forward is Loss.forward
        self.takes_vectors = plain and not (label_smoothing or log_q_correction)

    def rows(self, logits: Tensor, labels: Tensor, session: Tensor | None) -> Tensor:
        """The cross entropy of each row."""
        classes = class_labels(labels, logits, "softmax_cross_entropy")
        if not self.label_smoothing:
            return F.cross_entropy(logits, classes, reduction="none")
        return sampled_softmax(*split_own(logits, classes), smoothing=self.label_smoothing)

    def compare_vectors(
        self,
        users: Tensor,
        items: Tensor,
        own: Tensor,
        own_rows: Tensor | None = None,
        log_counts: Tensor | None = None,
    ) -> Tensor:
        """The loss of each row, some rows at a time, so that no matrix of all scores is held."""
        users, items = at_least_single(users), at_least_single(items)
        return chunked_softmax(users, items, own, own_rows=own_rows, log_counts=log_counts)

    def predict(self, logits: Tensor) -> Tensor:
        """Softmax over classes, [rows, classes]."""
        return logits.softmax(dim=1)
