"""Softmax cross entropy over a whole catalogue, without its matrix of scores.

The scores of all items, [queries, items], would be 4 GB for 10,000 queries and 100,000 items. Here
some queries at a time meet all items, so memory is that of one chunk, and the gradient is exact.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from recgrad.losses.softmax_kernels import exponentials, fits_kernels

CHUNK_SCORES = 1 << 21
"""Scores that are held at once: 8 MB of float32, which caches hold between two passes."""


def chunked_softmax(
    queries: Tensor,
    items: Tensor,
    own: Tensor,
    *,
    own_rows: Tensor | None = None,
    log_counts: Tensor | None = None,
    scale: Tensor | float = 1.0,
    scores: int = CHUNK_SCORES,
) -> Tensor:
    """-log softmax(scale · queries @ itemsᵀ)[own], [queries]; the sum over a query's own items.

    Costs three matrix products where every query weighs the same in what is minimised (a mean), and
    five else, since products are then made again when the gradients of the queries are known. Several
    own items of a query cost no more products than one.

    Args:
        queries: [queries, dim].
        items: [items, dim].
        own: int64 [queries], which item is each query's own.
        own_rows: int64, as long as `own`: the query of each own item; None where each query has one.
        log_counts: [items], what scores are lowered by in the sum of exponentials; 0 of own items.
        scale: of the scores, such as 1 / temperature; a tensor gets a gradient too.
        scores: the most scores that are held at once; at least those of one query are.
    """
    scaled = queries * scale
    result: Tensor = _ChunkedSoftmax.apply(  # type: ignore[no-untyped-call]
        scaled, items, own, own_rows, log_counts, scores
    )
    return result


class _ChunkedSoftmax(torch.autograd.Function):
    """Values, and gradients as if every value had a gradient of 1; others are computed when asked for."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        items: Tensor,
        own: Tensor,
        own_rows: Tensor | None,
        log_counts: Tensor | None,
        scores: int,
    ) -> Tensor:
        """The cross entropy of each query."""
        needed = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        queries, items = queries.contiguous(), items.contiguous()
        own_items, askers, counts = _pairs(queries, items, own, own_rows)
        values = _of_queries((askers * own_items).sum(1).neg_(), own_rows, len(queries))
        of_queries = torch.empty_like(queries) if needed else None
        of_items = torch.zeros_like(items) if needed else None
        for part in _chunks(queries, items, scores):
            powers, tops, sums = _exponentials(queries[part], items, log_counts)
            shares = counts[part] / sums
            values[part] += counts[part] * (tops + sums.log())
            if of_queries is not None and of_items is not None:
                torch.mm(powers, items, out=of_queries[part])
                of_queries[part] *= shares[:, None]
                of_items.addmm_(powers.t(), queries[part] * shares[:, None])
        if of_queries is not None and of_items is not None:
            of_queries -= _of_queries(own_items, own_rows, len(queries))
            of_items.index_add_(0, own, askers, alpha=-1)
        ctx.scores = scores
        ctx.save_for_backward(queries, items, own, own_rows, log_counts, of_queries, of_items)
        return values

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None, None, None, None]:
        """The gradients of queries and items."""
        (of_values,) = gradients
        queries, items, own, own_rows, log_counts, of_queries, of_items = ctx.saved_tensors
        from_queries = of_queries * of_values[:, None]
        if not ctx.needs_input_grad[1]:
            return from_queries, None, None, None, None, None
        if not len(of_values) or bool((of_values == of_values[0]).all()):
            return from_queries, of_items * (of_values[0] if len(of_values) else 0), None, None, None, None
        weighted = queries * of_values[:, None]
        _, askers, counts = _pairs(weighted, items, own, own_rows)
        from_items = torch.zeros_like(items).index_add_(0, own, askers, alpha=-1)
        for part in _chunks(queries, items, ctx.scores):
            powers, _, sums = _exponentials(queries[part], items, log_counts)
            from_items.addmm_(powers.t(), weighted[part] * (counts[part] / sums)[:, None])
        return from_queries, from_items, None, None, None, None


def _pairs(
    queries: Tensor, items: Tensor, own: Tensor, own_rows: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """The own items, the query of each, and how many each query has."""
    own_items = items.index_select(0, own)
    if own_rows is None:
        return own_items, queries, queries.new_ones(len(queries))
    counts = torch.bincount(own_rows, minlength=len(queries)).to(queries.dtype)
    return own_items, queries.index_select(0, own_rows), counts


def _of_queries(values: Tensor, own_rows: Tensor | None, count: int) -> Tensor:
    """What own items have, summed for each query."""
    if own_rows is None:
        return values
    return values.new_zeros(count, *values.shape[1:]).index_add_(0, own_rows, values)


def _exponentials(queries: Tensor, items: Tensor, log_counts: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """exp(s − t) of all scores s, the largest score t of each query, and the sum of its exponentials.

    Divisions by the sums are left to what the exponentials are multiplied with, which is narrower: scores
    are read once for their largest and once more for their exponentials.
    """
    matrix = queries @ items.t()
    if log_counts is not None:
        matrix -= log_counts
    if fits_kernels(matrix):
        return matrix, *exponentials(matrix)
    tops = matrix.amax(1)
    powers = matrix.sub_(tops[:, None]).exp_()
    return powers, tops, powers.sum(1)


def _chunks(queries: Tensor, items: Tensor, scores: int) -> list[slice]:
    rows = max(1, scores // max(1, len(items)))
    return [slice(start, start + rows) for start in range(0, len(queries), rows)]
