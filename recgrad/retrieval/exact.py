"""Exact search: the k items of the largest inner product with each query, over all items."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from recgrad.errors import RecgradError
from recgrad.kernels.compile import compiled
from recgrad.kernels.parallel import launch, thread_count
from recgrad.kernels.simd import LANES
from recgrad.kernels.tiles import TILE
from recgrad.retrieval import topk_kernels
from recgrad.retrieval.lists import Array, Floats, Found, Ints, ItemSets

QUERIES_PER_TASK = 192  # whose vectors stay in the second cache
TASKS_PER_THREAD = 3
LEAST_PART = 256  # panels that are worth lines of their own
KEYS_IN_MEMORY = 1 << 22  # of all queries that are searched for at a time
NONE = np.iinfo(np.int64).min  # the key of no item


class PackedVectors:
    """Vectors of items as the kernel reads them: panels of 16 items, a dim's 16 numbers side by side.

    Args:
        vectors: [items, dim]; they are copied.
    """

    def __init__(self, vectors: Array) -> None:
        vectors = np.asarray(vectors, np.float32)
        if vectors.ndim != 2 or not vectors.shape[1]:
            raise ValueError(f"vectors must be [items, dim], got {list(vectors.shape)}")
        self.count, self.dim = vectors.shape
        check_finite(vectors, "item")
        # One query is compared with several panels at a time.
        panels = -(-self.count // (LANES * topk_kernels.AHEAD)) * topk_kernels.AHEAD
        self.panels: Floats = np.empty((panels, self.dim, LANES), np.float32)
        whole = self.count // LANES
        self.panels[:whole] = vectors[: whole * LANES].reshape(whole, LANES, self.dim).transpose(0, 2, 1)
        self.panels[whole:] = 0
        if self.count > whole * LANES:
            self.panels[whole, :, : self.count - whole * LANES] = vectors[whole * LANES :].T

    @classmethod
    def of_panels(cls, panels: Floats, count: int) -> PackedVectors:
        """Vectors that were packed before, such as those of a mapped file."""
        packed = cls.__new__(cls)
        packed.panels, packed.count, packed.dim = panels, count, panels.shape[1]
        return packed

    def __len__(self) -> int:
        return self.count

    def vectors(self, items: Array | slice = slice(None)) -> Floats:
        """The vectors of some items by number, [items, dim]; a copy."""
        numbers = np.arange(self.count)[items]
        return self.panels[numbers // LANES, :, numbers % LANES]

    def search(
        self, queries: Array, k: int, *, allowed: Array | None = None, banned: ItemSets | None = None
    ) -> Found:
        """The k items of the largest inner product with each query, ties in item order.

        The same for any number of threads, and for a query alone or among others.

        Args:
            queries: [queries, dim].
            k: how many; the others of a query that has fewer are −1.
            allowed: bool [items], those that may be found; all by default.
            banned: items that each query must not find, besides.
        """
        queries = np.ascontiguousarray(queries, np.float32)
        if queries.ndim != 2 or queries.shape[1] != self.dim:
            raise ValueError(f"queries must be [queries, {self.dim}], got {list(queries.shape)}")
        check_finite(queries, "query")
        return _in_blocks(self._keys, queries, k, self.count, allowed, banned)

    def _keys(self, queries: Floats, k: int, allowed: Array | None, banned: ItemSets | None) -> Ints:
        """The keys of the best k of each query, best first."""
        count = len(queries)
        lines = -(-count // TILE) * TILE
        filled = np.zeros((lines, self.dim), np.float32)
        filled[:count] = queries
        step, parts, panels = self._shares(count)
        kept = _Kept(parts, lines, k, allowed, banned)
        kept.limits[:, count:] = np.inf
        sizes = (count, self.dim, self.count, step, lines, k, kept.capacity, parts, panels)
        kernel = compiled(topk_kernels.best_k)
        launch(kernel, *sizes, filled, self.panels, *kept.arrays(), tasks=parts * -(-count // step))
        return kept.best(count)

    def _shares(self, count: int) -> tuple[int, int, int]:
        """Queries of a task, parts of the items, and panels of a part; the result is the same for any."""
        blocks = -(-count // QUERIES_PER_TASK)
        step = 1 if count == 1 else -(-count // (blocks * TILE)) * TILE
        total = -(-self.count // LANES)
        wanted = -(-TASKS_PER_THREAD * thread_count() // blocks) if thread_count() > 1 else 1
        parts = max(1, min(wanted, total // LEAST_PART))
        panels = -(-total // parts)
        panels = -(-panels // topk_kernels.AHEAD) * topk_kernels.AHEAD
        return step, -(-total // panels), panels


def best_scores(
    scores: Array, k: int, *, allowed: Array | None = None, banned: ItemSets | None = None
) -> Found:
    """The k largest of scores [queries, items], as `PackedVectors.search` gives them; −inf is never found."""
    scores = np.asarray(scores, np.float32)
    if scores.ndim != 2:
        raise ValueError(f"scores must be [queries, items], got {list(scores.shape)}")
    if (wrong := np.isnan(scores).any(1)).any():
        raise RecgradError(f"scores of query {int(wrong.argmax())} are nan; the model may have diverged")

    def keys(rows: Array, k: int, allowed: Array | None, banned: ItemSets | None) -> Ints:
        rows = np.ascontiguousarray(rows)
        count, items = rows.shape
        kept = _Kept(1, count, k, allowed, banned)
        sizes = (count, 0, items, 1, count, k, kept.capacity, 1, 0)
        launch(compiled(topk_kernels.best_scores), *sizes, rows, 0, *kept.arrays(), tasks=count)
        return kept.best(count)

    return _in_blocks(keys, scores, k, scores.shape[1], allowed, banned)


class _Kept:
    """The lines of keys that a kernel fills, and what it must leave out."""

    def __init__(
        self, parts: int, lines: int, k: int, allowed: Array | None, banned: ItemSets | None
    ) -> None:
        self.k, self.capacity = k, k + max(k // 2, 64)
        self.keys = np.full((parts, lines, self.capacity), NONE, np.int64)
        self.counts = np.zeros((parts, lines), np.int64)
        self.limits = np.full((parts, lines), -np.inf, np.float32)
        self.allowed: Array | int = 0 if allowed is None else allowed
        self.starts: Array | int = 0 if banned is None else np.ascontiguousarray(banned.starts, np.int64)
        self.banned: Array | int = 0 if banned is None else np.ascontiguousarray(banned.items, np.int64)

    def arrays(self) -> tuple[Array | int, ...]:
        """The last arguments of a kernel."""
        return self.allowed, self.starts, self.banned, self.keys, self.counts, self.limits

    def best(self, count: int) -> Ints:
        """The k best keys of each of the first lines, best first."""
        # What was cut from a line is still behind its end, and no harm: it is less than what was kept.
        merged = self.keys[:, :count].transpose(1, 0, 2).reshape(count, -1)
        if merged.shape[1] > self.k:
            merged = np.partition(merged, merged.shape[1] - self.k, axis=1)[:, -self.k :]
        return np.sort(merged, axis=1)[:, ::-1]


def _in_blocks(
    keys: Callable[[Array, int, Array | None, ItemSets | None], Ints],
    rows: Array,
    k: int,
    count: int,
    allowed: Array | None,
    banned: ItemSets | None,
) -> Found:
    """What `keys` finds among `count` items, for as many rows at a time as their lines may take memory."""
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    if allowed is not None:
        allowed = np.ascontiguousarray(allowed, bool)
        if allowed.shape != (count,):
            raise ValueError(f"allowed must be [{count}], got {list(allowed.shape)}")
    if banned is not None and len(banned.starts) != len(rows) + 1:
        raise ValueError(f"banned must have {len(rows)} sets, got {len(banned.starts) - 1}")
    items = np.full((len(rows), k), -1, np.int64)
    scores = np.full((len(rows), k), -np.inf, np.float32)
    own = min(k, count)
    step = max(QUERIES_PER_TASK, KEYS_IN_MEMORY // (own + 64))
    for begin in range(0, len(rows) if own else 0, step):
        end = min(begin + step, len(rows))
        sets = None if banned is None else banned.rows(begin, end)
        items[begin:end, :own], scores[begin:end, :own] = decoded(keys(rows[begin:end], own, allowed, sets))
    return Found(items, scores)


def decoded(keys: Ints) -> tuple[Ints, Floats]:
    """The items and scores of keys."""
    high = keys >> 32
    bits = np.where(high < 0, high ^ 0x7FFFFFFF, high).astype(np.int32)
    none = keys == NONE
    return np.where(none, -1, 0xFFFFFFFF - (keys & 0xFFFFFFFF)), np.where(
        none, -np.inf, bits.view(np.float32)
    )


def check_finite(vectors: Array, what: str) -> None:
    """Raise where a number of a vector is not finite: it would be found always, or never."""
    # A sum of squares is cheaper than a look at each number, and not finite where one is not.
    norms = np.einsum("ij,ij->i", vectors, vectors, dtype=np.float64)
    if not np.isfinite(norms).all():
        row = int(np.flatnonzero(~np.isfinite(norms))[0])
        raise RecgradError(
            f"{what} vector {row} has numbers that are not finite; the model may have diverged"
        )
