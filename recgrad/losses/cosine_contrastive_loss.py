"""Cosine contrastive loss (SimpleX, Mao et al. 2021, arXiv:2109.12613)."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor

from recgrad.limits import Range, Rate
from recgrad.losses import LOSSES
from recgrad.losses.base import CandidateLoss
from recgrad.losses.candidates import cosine_contrastive

Cosine = Annotated[float, Range("[-1, 1]")]


@LOSSES.register("cosine_contrastive_loss")
class CosineContrastiveLoss(CandidateLoss):
    """(1 − own score) + w · mean over candidates of max(0, score − margin).

    Candidates below the margin have no gradient, so that many may be drawn. Made for cosines: similarity
    COSINE and temperature 1.

    Paper: Mao et al. 2021, arXiv:2109.12613

    Args:
        margin: scores of candidates above it are pushed down.
        negative_weight: w.
    """

    def __init__(self, *, margin: Cosine = 0.9, negative_weight: Rate = 10.0) -> None:
        super().__init__()
        self.margin, self.negative_weight = margin, negative_weight

    def compare(self, own: Tensor, others: Tensor) -> Tensor:
        """The loss of each row."""
        return cosine_contrastive(own, others, margin=self.margin, weight=self.negative_weight)
