"""Bayesian personalized ranking (Rendle et al. 2009, arXiv:1205.2618)."""

from __future__ import annotations

from torch import Tensor

from recgrad.losses import LOSSES
from recgrad.losses.base import CandidateLoss
from recgrad.losses.candidates import bpr


@LOSSES.register("bpr_loss")
class BPRLoss(CandidateLoss):
    """Mean over candidates of −log σ(own score − candidate's score).

    Paper: Rendle et al. 2009, arXiv:1205.2618
    """

    def compare(self, own: Tensor, others: Tensor) -> Tensor:
        """The loss of each row."""
        return bpr(own, others)
