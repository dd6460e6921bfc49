"""Similarities of vectors as inner products, which is what is searched for.

COSINE         the towers have normalised their vectors: an inner product as it is
INNER_PRODUCT  as it is
EUCLID         −|u − v| falls with |u − v|² = |u|² − 2·(u·v − |v|²/2), so the largest u'·v' is the nearest
               item, with u' = [u, 1] and v' = [v, −|v|²/2]

With a boost b of items (`recgrad.retrieval.boost`) u' = [u, 1] and v' = [v, b], so that scores are u·v + b.
"""

from __future__ import annotations

import numpy as np

from recgrad.retrieval.lists import Array, Floats, Found

EUCLID = "EUCLID"


def item_side(vectors: Array, similarity: str, boosts: Floats | None = None) -> Floats:
    """The vectors of items, or of other things that are found, as they are searched.

    Args:
        vectors: [items, dim], as the tower gave them.
        similarity: of the model.
        boosts: [items], what is added to their similarities, which are not EUCLID then.
    """
    vectors = np.asarray(vectors, np.float32)
    if boosts is not None:
        assert similarity != EUCLID
        return np.concatenate([vectors, boosts[:, None]], axis=1)
    if similarity != EUCLID:
        return vectors
    half = -0.5 * np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)
    return np.concatenate([vectors, half[:, None].astype(np.float32)], axis=1)


def query_side(vectors: Array, similarity: str, boosted: bool = False) -> Floats:
    """The vectors of queries as they are searched for, [..., dim]; `boosted` where items have boosts."""
    vectors = np.asarray(vectors, np.float32)
    if similarity != EUCLID and not boosted:
        return vectors
    return np.concatenate([vectors, np.ones((*vectors.shape[:-1], 1), np.float32)], axis=-1)


def similarities(found: Found, queries: Array, similarity: str) -> Found:
    """What was found with the similarity as the score; `queries` [queries, dim] as the tower gave them."""
    if similarity != EUCLID:
        return found
    squares = np.einsum("ij,ij->i", queries, queries, dtype=np.float64)[:, None]
    distances = np.sqrt(np.maximum(squares - 2.0 * found.scores, 0))
    return Found(found.items, np.where(found.items < 0, -np.inf, -distances).astype(np.float32))
