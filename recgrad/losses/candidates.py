"""Formulas of retrieval: how well an item scores against other candidates, one value a query.

    own      [queries]              the score of the query's own item
    others   [queries, candidates]  scores of other items; -inf where a query has no candidate

Scores are similarities of any scale, such as logits. A candidate of -inf counts nowhere and has no
gradient; a query without any has a loss that only its own item decides. Everything broadcasts over
leading dimensions, so positions of sequences need no reshaping: own [..., n], others [..., n, candidates].
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def split_own(logits: Tensor, own: Tensor) -> tuple[Tensor, Tensor]:
    """Scores [rows, candidates] as own [rows], column `own[i]` of row i, and others, -inf in its place.

    Where the own item is in column 0 of every row, nothing is copied.
    """
    if own.device.type == "cpu" and not own.any():
        return logits[:, 0], logits[:, 1:]
    column = own.to(logits.device)[:, None]
    return logits.gather(1, column).squeeze(1), logits.scatter(1, column, -torch.inf)


def sampled_softmax(
    own: Tensor, others: Tensor, *, log_counts: Tensor | None = None, smoothing: float = 0.0
) -> Tensor:
    """-log(e^own / (e^own + Σ e^(others - log_counts))).

    With `log_counts`, the logarithm of how often each candidate is expected among those drawn, the
    sum estimates that over the whole catalogue without bias (Bengio & Senécal 2008): candidates that are
    drawn often count less each. The own item is there with certainty, so it is not corrected.

    Args:
        own: [queries].
        others: [queries, candidates].
        log_counts: [candidates] or [queries, candidates].
        smoothing: the share of the target that is spread evenly over the own item and all candidates.
    """
    corrected = others if log_counts is None else others - log_counts
    log_sum = torch.logsumexp(torch.cat([own.unsqueeze(-1), corrected], dim=-1), dim=-1)
    loss = log_sum - own
    if smoothing:
        there = corrected > -torch.inf
        total = own + torch.where(there, corrected, 0).sum(-1)
        mean = total / (1 + there.sum(-1))
        loss = (1 - smoothing) * loss + smoothing * (log_sum - mean)
    return loss


def bpr(own: Tensor, others: Tensor) -> Tensor:
    """Mean over candidates of -log σ(own - other): Bayesian personalized ranking (Rendle et al. 2009)."""
    return _mean(F.softplus(others - own.unsqueeze(-1)), others)


def cosine_contrastive(own: Tensor, others: Tensor, *, margin: float, weight: float) -> Tensor:
    """1 - own + weight · mean over candidates of max(0, other - margin) (SimpleX, Mao et al. 2021)."""
    return 1 - own + weight * _mean(F.relu(others - margin), others)


def generalized_bce(own: Tensor, others: Tensor, *, beta: float | Tensor = 1.0) -> Tensor:
    """-(β·log σ(own) + Σ log(1 - σ(other))) / (1 + candidates): cross entropy of own item against others.

    β < 1 undoes the overconfidence of sampling few candidates (gBCE, Petrov & Macdonald 2023), see
    `gbce_beta`; 1 is plain binary cross entropy, as SASRec trains with.
    """
    there = others > -torch.inf
    # softplus(-inf) is 0 with a gradient of 0.
    total = beta * F.softplus(-own) + F.softplus(others).sum(-1)
    return total / (1 + there.sum(-1))


def gbce_beta(num_candidates: float | Tensor, num_items: int, calibration: float) -> Tensor:
    """β = α·(t·(1 - 1/α) + 1/α), α = candidates / (items - 1) at most 1.

    t = 0 gives 1, plain cross entropy; t = 1 gives α, scores that are calibrated as if every item were a
    candidate.
    """
    alpha = torch.as_tensor(num_candidates, dtype=torch.float64).div(max(num_items - 1, 1)).clamp(max=1)
    return calibration * (alpha - 1) + 1


def log_expected_counts(log_probability: Tensor, num_draws: float) -> Tensor:
    """log(draws · q): what `sampled_softmax` takes as log_counts for draws with replacement."""
    return log_probability + math.log(num_draws)


def _mean(values: Tensor, others: Tensor) -> Tensor:
    """Mean over the candidates that are there; 0 where none is. Values of absent ones must be 0."""
    there = (others > -torch.inf).sum(-1)
    return values.sum(-1) / there.clamp(min=1)
