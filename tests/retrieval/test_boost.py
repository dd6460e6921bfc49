"""Boosts: what a column of the items adds to their similarities, in evaluation, indexes and lists."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recgrad
from recgrad.cli.main import main
from recgrad.config import PipelineConfig
from recgrad.errors import RecgradError
from recgrad.retrieval.approximate import Settings
from recgrad.retrieval.boost import Boost
from recgrad.serving.index import Index, build_index

Vectors = Callable[[str, pa.Table], np.ndarray]
WEIGHT = 0.8


def boosted(shop, vectors: Vectors) -> np.ndarray:
    """The scores of all users and items in float64."""
    scores = vectors("user", shop.users).astype(np.float64) @ vectors("item", shop.items).T
    return scores + WEIGHT * np.log(1 + shop.items["price"].to_numpy().astype(np.float64))


def with_boost(shop, field: str = "price", weight: float = WEIGHT) -> PipelineConfig:
    config = shop.config()
    catalogue = config.eval_config.catalogue
    catalogue.item_input_path = str(shop.folder / "items.parquet")
    catalogue.item_id_field, catalogue.user_id_field = "item_id", "user_id"
    catalogue.top_k.append(5)
    catalogue.boost.field, catalogue.boost.log_weight = field, weight
    return config


def test_evaluation_ranks_by_similarity_and_boost(shop, model_dir: Path, vectors: Vectors) -> None:
    found = recgrad.evaluate(with_boost(shop))["catalogue_recall@5"]
    scores, recalls = boosted(shop, vectors), []
    for user in sorted(set(shop.test["user_id"].to_pylist())):
        seen, wanted = (
            {int(name[1:]) for name, owner in zip(*columns) if owner == user}
            for columns in (
                (table["item_id"].to_pylist(), table["user_id"].to_pylist())
                for table in (shop.train, shop.test)
            )
        )
        best = [item for item in np.argsort(-scores[user], kind="stable") if item not in seen][:5]
        recalls.append(len(wanted & set(best)) / len(wanted))
    assert found == pytest.approx(np.mean(recalls), abs=1e-9)


def test_lists_of_a_boosted_index(shop, model_dir: Path, vectors: Vectors, tmp_path: Path) -> None:
    items, users = shop.folder / "items.parquet", shop.folder / "users.parquet"
    index, lists = str(tmp_path / "index"), str(tmp_path / "lists.parquet")
    line = ["index", str(model_dir), "--items", str(items), "--out", index]
    assert main([*line, "--boost", f"price={WEIGHT}"]) == 0
    asked = ["--index", index, "--users", str(users), "--k", "5", "--output", lists]
    assert main(["recommend", str(model_dir), *asked]) == 0
    scores = boosted(shop, vectors)
    found = pq.read_table(lists)
    for row, own in enumerate(found["items"].to_pylist()):
        assert own == [f"i{item}" for item in np.argsort(-scores[row], kind="stable")[:5]]
    np.testing.assert_allclose(found["scores"].to_pylist(), -np.sort(-scores, axis=1)[:, :5], rtol=1e-5)


@pytest.mark.parametrize("kind", ["exact", "hnsw"])
def test_items_that_are_changed_keep_the_boost(tmp_path: Path, kind: str) -> None:
    if kind != "exact":
        pytest.importorskip("faiss")
    rng = np.random.default_rng(0)
    vectors, visits = rng.standard_normal((300, 8)).astype(np.float32), rng.integers(0, 1000, 300)
    asked = rng.standard_normal((40, 2, 8)).astype(np.float32)  # two interests each
    table = pa.table({"id": np.arange(300), "visits": visits})
    path, boost = tmp_path / "index", Boost("visits", 0.5)
    settings = Settings(ef_search=300) if kind == "hnsw" else None
    build_index(path, table, vectors, id_field="id", boost=boost, kind=kind, settings=settings)
    visits = visits.copy()
    visits[7] = 10_000_000
    Index(path).update(pa.table({"id": np.arange(7, 8), "visits": visits[7:8]}), vectors[7:8])
    index = Index(path)
    found = index.view().search(asked, 6)
    ids = np.asarray(index.ids_of(found.items.reshape(-1))).reshape(found.items.shape)
    scores = (asked.astype(np.float64) @ vectors.T.astype(np.float64)).max(1) + 0.5 * np.log1p(visits)
    np.testing.assert_array_equal(ids, np.argsort(-scores, axis=1, kind="stable")[:, :6])
    np.testing.assert_allclose(found.scores, -np.sort(-scores, axis=1)[:, :6], rtol=1e-5)


@pytest.mark.parametrize(
    ("column", "problem"),
    [
        (["a", "b"], "has to be of numbers, is string"),
        ([1, None], "has items without a number; give 0 to them"),
        ([0.5, -2.0], "has to be 0 or more, is -2 in row 1"),
        ([float("nan"), 1.0], "has to be 0 or more, is nan in row 0"),
    ],
)
def test_columns_without_such_numbers_are_refused(column: list[object], problem: str) -> None:
    with pytest.raises(RecgradError, match=problem):
        Boost("visits", 1.0).values(pa.array(column), "items")


def test_settings_that_cannot_work_are_refused(
    shop, model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for field, weight, problem in (
        ("", 1.0, "boost.field: is required"),
        ("price", 0.0, "boost.log_weight: must be a number other than 0, got 0"),
    ):
        with pytest.raises(RecgradError, match=problem):
            recgrad.evaluate(with_boost(shop, field, weight))
    config = recgrad.edit_config(with_boost(shop), {"model_config.dssm.similarity": "EUCLID"})
    with pytest.raises(RecgradError, match="not to distances"):
        recgrad.evaluate(config)
    vectors, boost = np.ones((90, 2)), Boost("price", 1.0)
    with pytest.raises(RecgradError, match="not to distances"):
        build_index(tmp_path / "a", shop.items, vectors, id_field="item_id", similarity="EUCLID", boost=boost)
    items, out = str(shop.folder / "items.parquet"), str(tmp_path / "b")
    line = ["index", str(model_dir), "--items", items, "--out", out]
    for flags, problem in (
        (["--boost", "price"], "--boost is COLUMN=WEIGHT"),
        (["--boost", "price=much"], "--boost is COLUMN=WEIGHT"),
        (["--boost", "cost=1"], "which the items have not (have: item_id, category, price)"),
        (["--boost", "price=1", "--update"], "--update keeps the boost of the index"),
    ):
        assert main([*line, *flags]) == 2
        assert problem in capsys.readouterr().err
