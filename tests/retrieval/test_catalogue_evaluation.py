"""Evaluation over the whole catalogue, against plain loops over users."""

from __future__ import annotations

import json
import logging
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
from recgrad.training.task import Task

Vectors = Callable[[str, pa.Table], np.ndarray]


def with_catalogue(config: PipelineConfig, shop, **settings: object) -> PipelineConfig:
    catalogue = config.eval_config.catalogue
    catalogue.item_input_path = str(shop.folder / "items.parquet")
    catalogue.item_id_field = "item_id"
    for name, value in settings.items():
        if name == "top_k":
            catalogue.top_k.extend(value)
        else:
            setattr(catalogue, name, value)
    return config


def by_loop(scores: np.ndarray, wanted: list[set[int]], seen: list[set[int]], k: int) -> dict[str, float]:
    """Recall and NDCG of the lists of each row of scores."""
    recalls, ndcgs = [], []
    for row, relevant, known in zip(scores, wanted, seen):
        order = [item for item in np.argsort(-row, kind="stable") if item not in known][:k]
        hits = [item in relevant for item in order]
        recalls.append(sum(hits) / len(relevant))
        ideal = sum(1 / np.log2(rank + 2) for rank in range(min(k, len(relevant))))
        ndcgs.append(sum(hit / np.log2(rank + 2) for rank, hit in enumerate(hits)) / ideal)
    return {f"catalogue_recall@{k}": np.mean(recalls), f"catalogue_ndcg@{k}": np.mean(ndcgs)}


def items_of(table: pa.Table, user: int) -> set[int]:
    rows = table.filter(pa.compute.equal(table["user_id"], user))
    return {int(name[1:]) for name in rows["item_id"].to_pylist()}


@pytest.mark.parametrize("masked", [True, False])
def test_users_of_several_rows_are_one_query_each(
    shop, model_dir: Path, vectors: Vectors, masked: bool
) -> None:
    config = with_catalogue(shop.config(), shop, user_id_field="user_id", top_k=[5, 20], mask_seen=masked)
    metrics = recgrad.evaluate(config)
    users = sorted(set(shop.test["user_id"].to_pylist()))
    scores = vectors("user", shop.users.take(pa.array(users))) @ vectors("item", shop.items).T
    wanted = [items_of(shop.test, user) for user in users]
    seen = [items_of(shop.train, user) if masked else set() for user in users]
    for k in (5, 20):
        expected = by_loop(scores, wanted, seen, k)
        assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-9)
    counts = np.bincount([int(name[1:]) for name in shop.train["item_id"].to_pylist()], minlength=90)
    popular = by_loop(np.tile(counts, (len(users), 1)), wanted, seen, 20)
    for name, value in popular.items():
        assert metrics[name.replace("catalogue", "most_popular")] == pytest.approx(value, abs=1e-9)


def test_rows_with_lists_of_items_to_find_and_of_seen_ones(
    shop, model_dir: Path, vectors: Vectors, tmp_path: Path
) -> None:
    users = shop.users.slice(0, 12)
    rng = np.random.default_rng(3)
    wanted = [set(rng.integers(0, 90, 3).tolist()) for _ in range(12)]
    seen = [set(rng.integers(0, 90, 10).tolist()) - own for own in wanted]
    names = [[f"i{item}" for item in own] for own in wanted]
    names[3] += ["unknown", "unknown", "other"]
    rows = shop.items.take(pa.array(np.zeros(12, int)))
    for column in users.column_names:
        rows = rows.append_column(column, users[column])
    rows = rows.append_column("want", pa.array(names))
    rows = rows.append_column("hist", pa.array(["|".join(f"i{item}" for item in own) for own in seen]))
    pq.write_table(rows, tmp_path / "eval.parquet")
    config = with_catalogue(
        shop.config(), shop, relevant_field="want", seen_field="hist", id_delimiter="|", top_k=[10]
    )
    metrics = recgrad.evaluate(config, eval_input_path=str(tmp_path / "eval.parquet"))
    scores = vectors("user", users) @ vectors("item", shop.items).T
    wanted[3] |= {-1, -2}  # those that no list can have
    expected = by_loop(scores, wanted, seen, 10)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-9)


def test_given_candidates_are_ranked_alone(shop, model_dir: Path, vectors: Vectors, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    rows = shop.test.slice(0, 30)
    given = [rng.choice(90, 20, replace=False) for _ in range(30)]
    rows = rows.append_column("given", pa.array([[f"i{item}" for item in own] for own in given]))
    pq.write_table(rows, tmp_path / "eval.parquet")
    config = with_catalogue(shop.config(), shop, candidates_field="given", top_k=[5])
    metrics = recgrad.evaluate(config, eval_input_path=str(tmp_path / "eval.parquet"))
    scores = vectors("user", rows) @ vectors("item", shop.items).T
    wanted = [{int(name[1:])} for name in rows["item_id"].to_pylist()]
    others = [set(range(90)) - set(own.tolist()) - want for own, want in zip(given, wanted)]
    expected = by_loop(scores, wanted, others, 5)
    assert {name: metrics[name] for name in expected} == pytest.approx(expected, abs=1e-9)


def test_rows_are_read_for_metrics_of_rows_alone(
    shop, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes: list[int] = []
    monkeypatch.setattr(Task, "forward", counted(Task.forward, passes))
    config = with_catalogue(shop.config(), shop, user_id_field="user_id")
    both = recgrad.evaluate(config)
    assert passes
    assert any(not name.startswith(("catalogue_", "most_popular_")) for name in both)
    passes.clear()
    config.model_config.ClearField("metrics")
    alone = recgrad.evaluate(config)
    assert not passes
    assert alone == {name: both[name] for name in alone}
    assert "catalogue_recall@20" in alone


def counted(function: Callable[..., object], calls: list[int]) -> Callable[..., object]:
    def call(*args: object, **kwargs: object) -> object:
        calls.append(1)
        return function(*args, **kwargs)

    return call


def test_training_evaluates_over_the_catalogue_and_keeps_the_best(
    shop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = with_catalogue(shop.config(), shop, user_id_field="user_id")
    config.export_config.exporter_type = "best"
    config.export_config.best_exporter_metric = "catalogue_recall@20"
    config.train_config.num_steps = 4
    with caplog.at_level(logging.INFO, "recgrad"):
        result = recgrad.train(config, model_dir=tmp_path / "run")
    assert 0 <= result.best_metrics["catalogue_recall@20"] <= 1
    assert "for comparison: most_popular_coverage@20" in caplog.text
    assert "catalogue of 90 items, 38 users; seen items left out; " in caplog.text
    assert "items to find were seen and count as misses" in caplog.text
    assert "recall@5: sampled, among 128 items a row" in caplog.text


def test_eval_prints_both_side_by_side(
    shop, model_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edits = {
        "eval_config.catalogue": {
            "item_input_path": str(shop.folder / "items.parquet"),
            "item_id_field": "item_id",
            "user_id_field": "user_id",
        }
    }
    out = tmp_path / "metrics.json"
    arguments = [
        "eval",
        str(model_dir),
        "--edit-config-json",
        json.dumps(edits),
        "--eval-result-filename",
        str(out),
    ]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["model", "most", "popular"]
    found = json.loads(out.read_text())
    name, model, popular = lines[2].split()
    assert (float(model), float(popular)) == pytest.approx(
        (found[f"catalogue_{name}"], found[f"most_popular_{name}"]), abs=1e-6
    )


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"item_input_path": ""}, "eval_config.catalogue.item_input_path: is required"),
        ({"top_k": [0]}, "eval_config.catalogue.top_k[0]: must be at least 1, got 0"),
        ({"mask_seen": True}, "mask_seen: needs user_id_field or seen_field"),
        ({"seen_field": "a", "mask_seen": False}, "seen_field: has no effect with mask_seen: false"),
    ],
)
def test_settings_that_cannot_work_are_refused(shop, settings: dict[str, object], problem: str) -> None:
    config = with_catalogue(shop.config(), shop, **settings)
    with pytest.raises(RecgradError) as error:
        recgrad.train(config)
    assert problem in str(error.value)


def test_a_model_without_towers_is_refused(shop) -> None:
    config = with_catalogue(shop.config(), shop)
    del config.model_config.feature_groups[:]
    config.model_config.feature_groups.add(
        group_name="all", feature_names=["user_id", "item_id"], group_type="DEEP"
    )
    config.model_config.ClearField("dssm")
    config.model_config.ClearField("losses")
    config.model_config.ClearField("metrics")
    config.model_config.dcn_v2.cross.cross_num = 1
    config.model_config.dcn_v2.final.hidden_units.append(4)
    config.model_config.losses.add().binary_cross_entropy.SetInParent()
    config.data_config.label_fields.append("price")
    problems = "\n".join(map(str, recgrad.check_config(config).problems))
    assert "eval_config.catalogue: tower 'user': DCNV2 has no towers" in problems


def test_ids_that_occur_twice_are_refused(shop, model_dir: Path, tmp_path: Path) -> None:
    pq.write_table(pa.concat_tables([shop.items, shop.items.slice(7, 2)]), tmp_path / "items.parquet")
    config = with_catalogue(shop.config(), shop)
    config.eval_config.catalogue.item_input_path = str(tmp_path / "items.parquet")
    with pytest.raises(RecgradError, match="2 ids occur more than once, the first is 'i7'"):
        recgrad.evaluate(config)
