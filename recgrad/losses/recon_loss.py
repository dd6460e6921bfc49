"""Reconstruction of vectors from their codes."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from recgrad.losses import LOSSES
from recgrad.losses.codes import CodeLoss, Gap, gaps, mean_or_zero


@LOSSES.register("recon_loss")
class ReconLoss(CodeLoss):
    """Mean over rows of the gap between a vector and what its codes decode to.

    Of models that learn from pairs, rows that are a pair are left to `contrastive_loss`.

    Args:
        recon_type: l2 (mean square), l1 (mean absolute difference) or cos (1 − cosine).
    """

    def __init__(self, *, recon_type: Gap = "l2") -> None:
        super().__init__()
        self.kind = recon_type

    def of_codes(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """The loss of a batch."""
        rows = gaps(outputs["reconstruction"], outputs["vectors"], self.kind)
        return mean_or_zero(rows[~outputs["pairs"]] if "pairs" in outputs else rows)
