"""Reconstructions of related items near each other."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from recgrad.losses import LOSSES
from recgrad.losses.base import at_least_single
from recgrad.losses.codes import CodeLoss


@LOSSES.register("contrastive_loss")
class ContrastiveLoss(CodeLoss):
    """Mean of three InfoNCE over the pairs (a, b) of a batch, whose other pairs are the negatives.

    With reconstructions â, b̂ of length 1 and a learned scale s of each: s·⟨âᵢ, b̂ⱼ⟩ and back; s·⟨âᵢ, bⱼ⟩ and
    s·⟨b̂ᵢ, aⱼ⟩; s·⟨âᵢ, aⱼ⟩ and s·⟨b̂ᵢ, bⱼ⟩. It is 0 of a batch without pairs.

    Paper: van den Oord et al. 2018, arXiv:1807.03748
    """

    def of_codes(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """The loss of a batch."""
        pairs = outputs["pairs"]
        a, b, a_hat, b_hat = (
            at_least_single(outputs[name][pairs])
            for name in ("vectors", "pair_vectors", "reconstruction", "pair_reconstruction")
        )
        a_hat, b_hat = F.normalize(a_hat, dim=1), F.normalize(b_hat, dim=1)
        scales = outputs["scales"]
        if not len(a):
            return 0 * (scales.sum() + a_hat.sum() + b_hat.sum())
        own = torch.arange(len(a), device=a.device)
        terms = [
            F.cross_entropy(scale * (left @ right.T), own)
            for scale, sides in zip(
                scales,
                (((a_hat, b_hat), (b_hat, a_hat)), ((a_hat, b), (b_hat, a)), ((a_hat, a), (b_hat, b))),
                strict=True,
            )
            for left, right in sides
        ]
        return torch.stack(terms).mean()
