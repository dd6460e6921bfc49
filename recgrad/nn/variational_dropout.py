"""Feature selection by learned dropout rates."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from recgrad.limits import Rate, keep_limits


@keep_limits
class VariationalDropout(nn.Module):
    """Drops whole fields (or single columns) with learned probabilities p = sigmoid(θ).

    In training a field is multiplied by 1 − z with z the concrete relaxation of a Bernoulli(p):
    z = sigmoid((logit p + logit u) / 0.1), u ~ U(0, 1), drawn for each row; in evaluation by
    1 − p. The penalty λ/rows · Σ(1 − p) pushes p up, so that fields which the loss does not
    need are dropped: rank them by p. θ starts as N(0, 1).
    Ma et al. 2018, https://arxiv.org/abs/1812.00353

    Args:
        widths: columns of each field.
        regularization_lambda: λ.
        embedding_wise: one probability for each column instead of each field.
    """

    temperature = 0.1
    fields: Tensor

    def __init__(
        self, widths: Sequence[int], regularization_lambda: Rate = 0.01, embedding_wise: bool = False
    ) -> None:
        super().__init__()
        self.regularization_lambda = regularization_lambda
        repeats = torch.tensor([1] * sum(widths) if embedding_wise else list(widths))
        self.theta = nn.Parameter(torch.randn(len(repeats)))
        index = torch.repeat_interleave(torch.arange(len(repeats)), repeats)
        self.register_buffer("fields", index, persistent=False)

    def dropout_probabilities(self) -> Tensor:
        """p of each field (or column), detached."""
        return torch.sigmoid(self.theta.detach())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [rows, columns] with fields dropped, and the penalty to add to the loss."""
        p = torch.sigmoid(self.theta)
        if self.training:
            uniform = torch.rand(x.shape[0], self.theta.shape[0], device=x.device)
            keep = torch.sigmoid(-(self.theta + torch.logit(uniform, eps=1e-7)) / self.temperature)
        else:
            keep = (1 - p).unsqueeze(0)
        penalty = self.regularization_lambda / max(x.shape[0], 1) * (1 - p).sum()
        return x * keep.index_select(1, self.fields), penalty
