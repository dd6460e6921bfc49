"""Joint ranking and calibration (Sheng et al., 2023, arXiv:2208.06164)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from recgrad.limits import Fraction
from recgrad.losses import LOSSES
from recgrad.losses.base import Loss, class_labels


@LOSSES.register("jrc_loss")
class JRCLoss(Loss):
    """α·cross entropy + (1−α)·contrast within the session, on two logits [not clicked, clicked].

    A positive competes on the clicked logit with the negatives of its session; a negative
    competes on the other logit with the positives of its session. Both are
    softplus(logsumexp(competitors) − own), and the logsumexp is one number a session, so
    time is that of sorting the session keys and memory is O(rows). A row without
    competitors (a session, or a batch, of one class) has no contrast: 0.

    Args:
        session_name: the field whose equal values make a session.
        alpha: share of the cross entropy.
    """

    labels: ClassVar[Literal["binary", "classes", "numbers"]] = "binary"
    num_logits: ClassVar[int | None] = 2
    needs_session: ClassVar[bool] = True

    def __init__(self, *, session_name: str = "", alpha: Fraction = 0.5) -> None:
        super().__init__()
        self.session_name, self.alpha = session_name, alpha

    def rows(self, logits: Tensor, labels: Tensor, session: Tensor | None) -> Tensor:
        """The loss of each row."""
        assert session is not None
        classes = class_labels(labels, logits, "jrc_loss")
        entropy = F.cross_entropy(logits, classes, reduction="none")
        return self.alpha * entropy + (1 - self.alpha) * session_contrast(
            logits, classes == 1, session.to(logits.device, non_blocking=True)
        )

    def predict(self, logits: Tensor) -> Tensor:
        """The probability of a click, softmax(z)[:, 1], [rows]."""
        return logits.softmax(dim=1)[:, 1]


def session_contrast(logits: Tensor, positive: Tensor, session: Tensor) -> Tensor:
    """softplus(logsumexp of the row's competitors − own logit), [rows]; 0 where there are none."""
    _, index = torch.unique(session.reshape(-1), return_inverse=True)
    # Slot 2s holds the positives of session s (they compete on logit 0), 2s+1 the negatives.
    slots = 2 * (int(index.max()) + 1 if index.numel() else 0)
    mine, against = 2 * index + (~positive).long(), 2 * index + positive.long()
    offered = torch.where(positive, logits[:, 0], logits[:, 1])
    own = torch.where(positive, logits[:, 1], logits[:, 0])
    top = offered.detach().new_full((slots,), -torch.inf).scatter_reduce(0, mine, offered.detach(), "amax")
    total = offered.new_zeros(slots).index_add(0, mine, torch.exp(offered - top[mine]))
    exists = total[against] > 0
    # Rows without competitors take harmless stand-ins, so that no inf reaches the gradient.
    log_sum = torch.where(exists, top[against], 0) + torch.log(torch.where(exists, total[against], 1))
    return torch.where(exists, F.softplus(log_sum - own, threshold=50), 0)
