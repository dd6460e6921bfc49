"""Softmax cross entropy over the whole catalogue."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from recgrad.limits import Count
from recgrad.losses import LOSSES
from recgrad.losses.base import CandidateLoss, at_least_single
from recgrad.losses.candidates import sampled_softmax
from recgrad.losses.chunked_softmax import CHUNK_SCORES, chunked_softmax


@LOSSES.register("full_softmax")
class FullSoftmax(CandidateLoss):
    """−log softmax(scores of all items)[own item], some rows at a time; of several own items the sum.

    Two-tower models hand it vectors instead of scores, with `catalogue_sampler` as their sampler, so
    that the matrix of all scores is never held. The gradient is exact, or with its `num_sample` that of
    the own items of the batch and of drawn ones that stand for all others.

    Args:
        chunk_scores: the most scores that are held at once.
    """

    over_vectors: ClassVar[bool] = True

    def __init__(self, *, chunk_scores: Count = CHUNK_SCORES) -> None:
        super().__init__()
        self.chunk_scores = chunk_scores

    def compare(self, own: Tensor, others: Tensor) -> Tensor:
        """The loss of each row, from scores."""
        return sampled_softmax(own, others)

    def compare_vectors(
        self,
        users: Tensor,
        items: Tensor,
        own: Tensor,
        own_rows: Tensor | None = None,
        log_counts: Tensor | None = None,
    ) -> Tensor:
        """The loss of each row, from vectors whose products are the scores.

        Args:
            users: [rows, dim].
            items: [items, dim].
            own: int64 [rows], the row's item among them.
            own_rows: the row of each own item, where rows have several or none.
            log_counts: [items], where they were drawn: the logarithm of how often each is expected, by which
                scores are lowered in the sum of exponentials; 0 of own items.
        """
        users, items = at_least_single(users), at_least_single(items)
        return chunked_softmax(
            users, items, own, own_rows=own_rows, log_counts=log_counts, scores=self.chunk_scores
        )
