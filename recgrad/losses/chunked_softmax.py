"""Softmax cross entropy over a whole catalogue, without its matrix of scores.

The scores of all items, [queries, items], would be 4 GB for 10,000 queries and 100,000 items. Here
some queries at a time meet all items, so memory is that of one chunk, and the gradient is exact.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_SCORES = 1 << 24
"""Scores that are held at once: 64 MB of float32."""


def chunked_softmax(
    queries: Tensor, items: Tensor, own: Tensor, *, scale: Tensor | float = 1.0, scores: int = CHUNK_SCORES
) -> Tensor:
    """-log softmax(scale · queries @ itemsᵀ)[own], [queries].

    Costs three matrix products where every query weighs the same in what is minimised (a mean), and
    five else, since products are then made again when the gradients of the queries are known.

    Args:
        queries: [queries, dim].
        items: [items, dim].
        own: int64 [queries], which item is each query's own.
        scale: of the scores, such as 1 / temperature; a tensor gets a gradient too.
        scores: the most scores that are held at once; at least those of one query are.
    """
    scaled = queries * scale
    result: Tensor = _ChunkedSoftmax.apply(scaled, items, own, scores)  # type: ignore[no-untyped-call]
    return result


class _ChunkedSoftmax(torch.autograd.Function):
    """Values, and gradients as if every value had a gradient of 1; others are computed when asked for."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, items: Tensor, own: Tensor, scores: int) -> Tensor:
        """The cross entropy of each query."""
        needed = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        values = torch.empty_like(queries[:, 0])
        of_queries = torch.empty_like(queries) if needed else None
        of_items = torch.zeros_like(items) if needed else None
        for part in _chunks(queries, items, scores):
            matrix = queries[part] @ items.t()
            at = own[part, None]
            own_scores = matrix.gather(1, at).squeeze(1)
            log_sum = torch.logsumexp(matrix, dim=1)
            values[part] = log_sum - own_scores
            if of_queries is not None and of_items is not None:
                slope = _slope(matrix, log_sum, at)
                torch.mm(slope, items, out=of_queries[part])
                of_items.addmm_(slope.t(), queries[part])
        ctx.scores = scores
        ctx.save_for_backward(queries, items, own, of_queries, of_items)
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        """The gradients of queries and items."""
        (of_values,) = gradients
        queries, items, own, of_queries, of_items = ctx.saved_tensors
        from_queries = of_queries * of_values[:, None]
        if not ctx.needs_input_grad[1]:
            return from_queries, None, None, None
        if not len(of_values) or bool((of_values == of_values[0]).all()):
            return from_queries, of_items * (of_values[0] if len(of_values) else 0), None, None
        from_items = torch.zeros_like(items)
        for part in _chunks(queries, items, ctx.scores):
            matrix = queries[part] @ items.t()
            slope = _slope(matrix, torch.logsumexp(matrix, dim=1), own[part, None])
            from_items.addmm_(slope.t(), queries[part] * of_values[part, None])
        return from_queries, from_items, None, None


def _slope(matrix: Tensor, log_sum: Tensor, own: Tensor) -> Tensor:
    """softmax - 1 at the own item; the matrix is used up."""
    slope = matrix.sub_(log_sum[:, None]).exp_()
    return slope.scatter_add_(1, own, -torch.ones_like(own, dtype=slope.dtype))


def _chunks(queries: Tensor, items: Tensor, scores: int) -> list[slice]:
    rows = max(1, scores // max(1, len(items)))
    return [slice(start, start + rows) for start in range(0, len(queries), rows)]
