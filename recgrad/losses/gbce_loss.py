"""Binary cross entropy of an item against candidates, calibrated for sampling (Petrov & Macdonald 2023)."""

from __future__ import annotations

import torch
from torch import Tensor

from recgrad.limits import Fraction, Size
from recgrad.losses import LOSSES
from recgrad.losses.base import CandidateLoss
from recgrad.losses.candidates import gbce_beta, generalized_bce


@LOSSES.register("gbce_loss")
class GBCELoss(CandidateLoss):
    """−(β·log σ(own) + Σ log(1 − σ(candidate))) / (1 + candidates).

    β = t·(α − 1) + 1 with α = candidates / (items − 1).
    Few sampled candidates make scores overconfident; β corrects it as far as t says. t = 0 is plain binary
    cross entropy with negatives, t = 1 calibrates fully.

    Paper: Petrov & Macdonald 2023, arXiv:2308.07192

    Args:
        calibration: t.
        num_items: items of the catalogue; needed for t above 0.
    """

    def __init__(self, *, calibration: Fraction = 0.75, num_items: Size = 0) -> None:
        super().__init__()
        if calibration and num_items < 2:
            raise ValueError(
                f"num_items must be the number of items in the catalogue, got {num_items}; give it, or set "
                "calibration to 0 for plain binary cross entropy"
            )
        self.calibration, self.num_items = calibration, num_items

    def compare(self, own: Tensor, others: Tensor) -> Tensor:
        """The loss of each row."""
        there = (others > -torch.inf).sum(-1)
        beta = gbce_beta(there, self.num_items, self.calibration).to(own) if self.calibration else 1.0
        return generalized_bce(own, others, beta=beta)
