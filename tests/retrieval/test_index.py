"""Indexes on disk: found against a sort, changed, filtered, approximate, damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from recgrad.errors import RecgradError
from recgrad.retrieval.approximate import Settings
from recgrad.retrieval.lists import Found, ItemSets
from recgrad.serving.index import Index, build_index
from recgrad.serving.index_view import View

ITEMS, DIM = 600, 12


def items(count: int = ITEMS, first: int = 0) -> pa.Table:
    numbers = np.arange(first, first + count)
    return pa.table({"id": [f"i{n}" for n in numbers], "price": numbers % 20, "odd": numbers % 2 == 1})


def draw(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def ids_of(index: Index, found: Found) -> list[list[str]]:
    names = index.ids.to_pylist()
    return [[names[number] for number in row if number >= 0] for row in found.items]


def by_sorting(
    scores: np.ndarray, names: list[str], k: int, allowed: np.ndarray | None = None
) -> list[list[str]]:
    lists = []
    for row in scores:
        order = [i for i in np.argsort(-row, kind="stable") if allowed is None or allowed[i]]
        lists.append([names[i] for i in order[:k]])
    return lists


@pytest.mark.parametrize("queries", [3, 50])
@pytest.mark.parametrize("condition", [None, "price == 3", "not odd", "price < 19"])
def test_exact_search_with_filters_and_exclusions(
    tmp_path: Path, queries: int, condition: str | None
) -> None:
    vectors, asked = draw(ITEMS, DIM), draw(queries, DIM, seed=1)
    index = build_index(tmp_path / "index", items(), vectors, id_field="id")
    banned = ItemSets.of(np.repeat(np.arange(queries), 2), np.tile([3, 24], queries), queries)
    found = index.view(condition).search(asked, 7, banned)
    allowed = np.ones(ITEMS, bool)
    if condition is not None:
        prices = np.arange(ITEMS) % 20
        allowed = {
            "price == 3": prices == 3,
            "not odd": np.arange(ITEMS) % 2 == 0,
            "price < 19": prices < 19,
        }[condition]
    allowed = allowed.copy()
    allowed[[3, 24]] = False
    assert ids_of(index, found) == by_sorting(asked @ vectors.T, items()["id"].to_pylist(), 7, allowed)


def test_items_are_added_changed_and_removed_without_a_rebuild(tmp_path: Path) -> None:
    vectors, asked = draw(ITEMS, DIM), draw(40, DIM, seed=1)
    build_index(tmp_path / "index", items(), vectors, id_field="id")
    index = Index(tmp_path / "index")
    changed = draw(30, DIM, seed=2)
    index.update(items(30, first=590), changed)  # ten are changed, twenty added
    assert index.remove(pa.array(["i5", "i595", "nobody"])) == 2
    again = Index(tmp_path / "index")
    names = [f"i{n}" for n in range(620) if n not in (5, 595)]
    now = {f"i{n}": vectors[n] for n in range(ITEMS)} | {f"i{590 + n}": changed[n] for n in range(30)}
    current = np.stack([now[name] for name in names])
    for one in (index, again):
        assert len(one) == 618
        assert ids_of(one, one.view().search(asked, 9)) == by_sorting(asked @ current.T, names, 9)
        odd = np.array([int(name[1:]) % 2 == 1 for name in names])
        assert ids_of(one, one.view("odd").search(asked, 9)) == by_sorting(asked @ current.T, names, 9, odd)
    first = list((tmp_path / "index" / "segment-1").iterdir())
    assert {file.name for file in first} == {"items.parquet", "panels.npy"}


def test_euclidean_distances(tmp_path: Path) -> None:
    vectors, asked = draw(ITEMS, DIM), draw(5, DIM, seed=1)
    index = build_index(tmp_path / "index", items(), vectors, id_field="id", similarity="EUCLID")
    found = index.view().search(asked, 6)
    distances = np.linalg.norm(asked[:, None].astype(np.float64) - vectors[None], axis=2)
    assert ids_of(index, found) == by_sorting(-distances, items()["id"].to_pylist(), 6)
    np.testing.assert_allclose(found.scores, -np.sort(distances, axis=1)[:, :6], rtol=1e-4)


@pytest.mark.parametrize("kind", ["hnsw", "ivf", "ivfpq"])
def test_approximate_kinds_never_give_fewer_than_k(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("faiss")
    vectors, asked = draw(ITEMS, DIM), draw(40, DIM, seed=1)
    settings = Settings(nlist=20, nprobe=2)
    index = build_index(tmp_path / "index", items(), vectors, id_field="id", kind=kind, settings=settings)
    index = Index(index.path)
    expected = by_sorting(asked @ vectors.T, items()["id"].to_pylist(), 10)
    found = ids_of(index, index.view().search(asked, 10))
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(found, expected)]) > 0.3
    # A filter of 30 items, 25 of them asked for: the graph or lists alone would not find as many.
    rare = index.view("price == 3")
    assert rare.count == 30
    wanted = by_sorting(asked @ vectors.T, items()["id"].to_pylist(), 25, np.arange(ITEMS) % 20 == 3)
    banned = ItemSets.of(np.repeat(np.arange(40), 2), np.tile([3, 23], 40), 40)
    assert all(len(row) == 25 for row in ids_of(index, rare.search(asked, 25)))
    found = ids_of(index, rare.search(asked, 25, banned))
    assert all(len(row) == 25 and not {"i3", "i23"} & set(row) for row in found)
    assert len(wanted[0]) == 25
    index.update(items(5, first=600), 100 * asked[:5])
    assert all(f"i{600 + row}" in ids_of(index, index.view().search(asked[:5], 3))[row] for row in range(5))


def test_interests_count_by_the_nearest(tmp_path: Path) -> None:
    vectors, asked = draw(ITEMS, DIM), draw(6, 3, DIM, seed=1)
    asked[2, 1:] = 0
    index = build_index(tmp_path / "index", items(), vectors, id_field="id")
    scores = np.einsum("qid,nd->qin", asked, vectors)
    scores[2, 1:] = -np.inf
    found = index.view().search(asked, 11)
    assert ids_of(index, found) == by_sorting(scores.max(axis=1), items()["id"].to_pylist(), 11)


def test_k_above_the_catalogue_gives_all_items(tmp_path: Path) -> None:
    index = build_index(tmp_path / "index", items(5), draw(5, DIM), id_field="id")
    found = View(index.segments, index.similarity, None).search(draw(2, DIM), 9)
    assert (found.items >= 0).sum(1).tolist() == [5, 5]


def test_what_cannot_be_an_index_is_refused(tmp_path: Path) -> None:
    twice = pa.concat_tables([items(3), items(1)])
    with pytest.raises(RecgradError, match="1 ids occur more than once, the first is 'i0'"):
        build_index(tmp_path / "a", twice, draw(4, DIM), id_field="id")
    bad = draw(3, DIM)
    bad[1, 2] = np.nan
    with pytest.raises(
        RecgradError, match="1 items have vectors with numbers that are not finite, the first is 'i1'"
    ):
        build_index(tmp_path / "a", items(3), bad, id_field="id")
    with pytest.raises(RecgradError, match="3 items need a vector each"):
        build_index(tmp_path / "a", items(3), draw(2, DIM), id_field="id")
    with pytest.raises(RecgradError, match="there is none; make it with `recgrad index`"):
        Index(tmp_path / "a")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").write_text("x")
    with pytest.raises(RecgradError, match="is there and no index"):
        build_index(tmp_path / "b", items(3), draw(3, DIM), id_field="id")
    index = build_index(tmp_path / "c", items(3), draw(3, DIM), id_field="id")
    with pytest.raises(RecgradError, match="vectors have 12 dims, the new ones 5"):
        index.update(items(1), draw(1, 5))
    (tmp_path / "c" / "manifest.json").write_text("{")
    with pytest.raises(RecgradError, match="cannot be read"):
        Index(tmp_path / "c")
