"""Vectors near their codes, and codes near their vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from recgrad.limits import Rate
from recgrad.losses import LOSSES
from recgrad.losses.codes import CodeLoss, Gap, both_views, gaps, mean_or_zero


@LOSSES.register("commitment_loss")
class CommitmentLoss(CodeLoss):
    """w₁·gap(z, sg(Sₗ)) + w₂·gap(sg(z), Sₗ), the mean over rows and levels l.

    z are the latent vectors, Sₗ what the codes of the first l levels add up to, sg(·) has no gradient.

    Args:
        latent_weight: w₁ and w₂; 1 and 0.5 where it is left out.
        commitment_type: l2, l1 or cos, as for `recon_loss`.
    """

    def __init__(self, *, latent_weight: Sequence[Rate] = (), commitment_type: Gap = "l2") -> None:
        super().__init__()
        if len(latent_weight) not in (0, 2):
            raise ValueError(f"latent_weight must have 2 values, got {len(latent_weight)}")
        self.of_latent, self.of_codebook = latent_weight or (1.0, 0.5)
        self.kind = commitment_type

    def of_codes(self, outputs: Mapping[str, Tensor]) -> Tensor:
        """The loss of a batch."""
        latent, sums = both_views(outputs, "latent").unsqueeze(1), both_views(outputs, "sums")
        to_codes = mean_or_zero(gaps(latent.expand_as(sums), sums.detach(), self.kind))
        to_latent = mean_or_zero(gaps(sums, latent.detach().expand_as(sums), self.kind))
        return self.of_latent * to_codes + self.of_codebook * to_latent
