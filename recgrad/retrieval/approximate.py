"""Approximate search through faiss, for catalogues where exact search takes too long.

hnsw   a graph of neighbours: fast, 4·dim + 8·m bytes an item more, slow to build
ivf    lists of near items, some of which are looked into
ivfpq  the same, with vectors in pq_bytes bytes; the best are compared again by their whole vectors
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from recgrad.errors import RecgradError
from recgrad.retrieval.interests import best_of_pairs
from recgrad.retrieval.lists import Array, Bools, Floats, Found

RERANKED = 4  # times k candidates of a compressed index are compared again


@dataclass(frozen=True)
class Settings:
    """How an index is built and searched; 0 is chosen by the number of items.

    Attributes:
        nlist: lists of ivf and ivfpq; 0 is 4·√items.
        nprobe: lists that a query looks into; 0 is a tenth of them.
        hnsw_m: neighbours of an item.
        ef_construction: candidates while building hnsw.
        ef_search: candidates while searching it, at least k.
        pq_bytes: bytes of a vector of ivfpq; 0 is a quarter of the dim.
    """

    nlist: int = 0
    nprobe: int = 0
    hnsw_m: int = 32
    ef_construction: int = 200
    ef_search: int = 128
    pq_bytes: int = 0


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise RecgradError(
            "index: kinds other than exact need faiss; install it with: pip install 'recgrad[index]'"
        ) from error
    return faiss


def _hnsw(faiss: Any, vectors: Floats, settings: Settings) -> Any:
    index = faiss.IndexHNSWFlat(vectors.shape[1], settings.hnsw_m, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = settings.ef_construction
    return index


def _lists(vectors: Floats, settings: Settings) -> int:
    """Lists: no more than there are items to train them."""
    wanted = settings.nlist or int(4 * len(vectors) ** 0.5)
    return max(1, min(wanted, len(vectors) // 2 or 1))


def _ivf(faiss: Any, vectors: Floats, settings: Settings) -> Any:
    dim, nlist = vectors.shape[1], _lists(vectors, settings)
    index = faiss.IndexIVFFlat(faiss.IndexFlatIP(dim), dim, nlist, faiss.METRIC_INNER_PRODUCT)
    index.nprobe = min(settings.nprobe or max(1, nlist // 10), nlist)
    return index


def _ivfpq(faiss: Any, vectors: Floats, settings: Settings) -> Any:
    dim, nlist = vectors.shape[1], _lists(vectors, settings)
    wanted = settings.pq_bytes or max(1, dim // 4)
    size = max(part for part in range(1, min(wanted, dim) + 1) if dim % part == 0)
    if len(vectors) < 256:
        raise RecgradError(
            f"index: ivfpq needs at least 256 items to learn from, got {len(vectors)}; use exact"
        )
    index = faiss.IndexIVFPQ(faiss.IndexFlatIP(dim), dim, nlist, size, 8, faiss.METRIC_INNER_PRODUCT)
    index.nprobe = min(settings.nprobe or max(1, nlist // 10), nlist)
    return index


KINDS: dict[str, Callable[[Any, Floats, Settings], Any]] = {"hnsw": _hnsw, "ivf": _ivf, "ivfpq": _ivfpq}


class ApproximateIndex:
    """A faiss index of vectors that are searched by inner product.

    Args:
        index: of faiss.
        kind: of KINDS.
        settings: for searching.
    """

    def __init__(self, index: Any, kind: str, settings: Settings) -> None:
        self._index, self.kind, self.settings = index, kind, settings

    @classmethod
    def build(cls, vectors: Array, kind: str, settings: Settings) -> ApproximateIndex:
        """Train it and add the vectors [items, dim]."""
        faiss = _faiss()
        vectors = np.ascontiguousarray(vectors, np.float32)
        if not len(vectors):
            raise RecgradError(f"index: {kind} needs items, got none")
        index = KINDS[kind](faiss, vectors, settings)
        index.train(vectors)
        index.add(vectors)
        return cls(index, kind, settings)

    @classmethod
    def read(cls, path: str, kind: str, settings: Settings) -> ApproximateIndex:
        """As it was written."""
        return cls(_faiss().read_index(path), kind, settings)

    def write(self, path: str) -> None:
        """Write it to a file."""
        _faiss().write_index(self._index, path)

    def search(
        self, queries: Array, k: int, vectors: Callable[[Array], Floats], allowed: Bools | None = None
    ) -> Found:
        """About the k best items of each query; fewer where it finds fewer.

        Args:
            queries: [queries, dim].
            k: how many.
            vectors: gives the whole vectors of items, to compare those of a compressed index again.
            allowed: bool [items], those that may be found.
        """
        faiss, count = _faiss(), int(self._index.ntotal)
        wanted = min(count, RERANKED * k if self.kind == "ivfpq" else k)
        parameters = self._parameters(faiss, wanted, allowed)
        queries = np.ascontiguousarray(queries, np.float32)
        scores, items = self._index.search(queries, wanted, params=parameters)
        rows, places = np.nonzero(items >= 0)  # −1 stands for none
        item = items[rows, places].astype(np.int64)
        score = scores[rows, places]
        if self.kind == "ivfpq":
            score = np.einsum("ij,ij->i", queries[rows], vectors(item))
        return best_of_pairs(rows, item, score, len(queries), k)

    def _parameters(self, faiss: Any, wanted: int, allowed: Bools | None) -> Any:
        chosen: dict[str, Any] = {}
        if allowed is not None:
            chosen["sel"] = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        if self.kind == "hnsw":
            return faiss.SearchParametersHNSW(efSearch=max(self.settings.ef_search, wanted), **chosen)
        return faiss.SearchParametersIVF(nprobe=self._index.nprobe, **chosen)
