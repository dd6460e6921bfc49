"""Queries of several vectors each, such as the interests of a user: the largest score of them counts."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from recgrad.retrieval.lists import Array, Found, ItemSets

Search = Callable[[Array, ItemSets | None], Found]
"""Finds the best k for queries [queries, dim], without what is banned for each."""


def search_interests(search: Search, vectors: Array, banned: ItemSets | None = None) -> Found:
    """The best items of each query by the largest score of its vectors; an item counts once.

    An item that is among the k best by its best score is among the k best of that vector, so no
    more than the k best of each are needed.

    Args:
        search: finds for one vector a query.
        vectors: [queries, interests, dim]; a vector of zeros is none, or [queries, dim].
        banned: items that each query must not find.
    """
    if vectors.ndim == 2:
        return search(vectors, banned)
    query, interest = np.nonzero(vectors.any(axis=2))
    found = search(vectors[query, interest], None if banned is None else banned.take(query))
    return merged(found, query, len(vectors))


def merged(found: Found, query: Array, queries: int) -> Found:
    """Lists that belong to the same query as one, each item with its largest score, ties in item order."""
    k = found.items.shape[1]
    rows, places = np.nonzero(found.items >= 0)
    owner, item, score = query[rows], found.items[rows, places], found.scores[rows, places]
    order = np.lexsort((-score, item, owner))
    owner, item, score = owner[order], item[order], score[order]
    new = np.ones(len(owner), bool)
    new[1:] = (owner[1:] != owner[:-1]) | (item[1:] != item[:-1])
    return best_of_pairs(owner[new], item[new], score[new], queries, k)


def best_of_pairs(owner: Array, item: Array, score: Array, queries: int, k: int) -> Found:
    """The k best of (query, item, score) in any order, ties in item order."""
    order = np.lexsort((item, -score, owner))
    owner, item, score = owner[order], item[order], score[order]
    starts = np.searchsorted(owner, np.arange(queries))
    rank = np.arange(len(owner)) - starts[owner]
    first = rank < k
    items = np.full((queries, k), -1, np.int64)
    scores = np.full((queries, k), -np.inf, np.float32)
    items[owner[first], rank[first]] = item[first]
    scores[owner[first], rank[first]] = score[first]
    return Found(items, scores)


def rank_sets(
    queries: Array, vectors: Callable[[Array], Array], sets: ItemSets, k: int, *, pairs: int = 1 << 20
) -> Found:
    """The k best of each query's own set of items by inner product.

    Args:
        queries: [queries, dim].
        vectors: gives the vectors of items [n, dim].
        sets: the candidates of each query.
        k: how many.
        pairs: that are compared at a time.
    """
    owner, score = sets.queries, np.empty(len(sets.items), np.float32)
    for begin in range(0, len(owner), pairs):
        part = slice(begin, begin + pairs)
        score[part] = np.einsum("ij,ij->i", queries[owner[part]], vectors(sets.items[part]))
    return best_of_pairs(owner, sets.items, score, len(queries), k)
