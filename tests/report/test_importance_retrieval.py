"""`recgrad importance` of two towers: features of users among rows, those of items among items."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import recgrad
from recgrad.cli.main import main
from recgrad.data.batch import Batch, Comparison, KeyedDense, KeyedJagged
from recgrad.data.taking import stack_features
from recgrad.report.deals import _dealt_batch
from recgrad.report.importance import feature_importance

ITEMS, USERS, SEED = 60, 40, 3
CONFIG = """
train_input_path: "{folder}/train.parquet" eval_input_path: "{folder}/eval.parquet"
model_dir: "{folder}/{name}"
data_config {{ batch_size: 64 eval_batch_size: 100 dataset_type: ParquetDataset fg_mode: FG_NORMAL
  {sampler} }}
feature_configs {{ id_feature {{ feature_name: "taste" expression: "user:taste" num_buckets: 6
  embedding_dim: 8 }} }}
feature_configs {{ id_feature {{ feature_name: "mood" expression: "user:mood" num_buckets: 6
  embedding_dim: 8 }} }}
feature_configs {{ id_feature {{ feature_name: "brand" expression: "item:brand" num_buckets: 6
  embedding_dim: 8 }} }}
feature_configs {{ raw_feature {{ feature_name: "liked" expression: "item:liked" }} }}
feature_configs {{ id_feature {{ feature_name: "noise" expression: "item:noise" num_buckets: 6
  embedding_dim: 8 }} }}
model_config {{
  feature_groups {{ group_name: "user" feature_names: ["taste", "mood"] group_type: DEEP }}
  feature_groups {{ group_name: "item" feature_names: ["brand", "liked", "noise"] group_type: DEEP }}
  dssm {{ user_tower {{ input: "user" mlp {{ hidden_units: [16] }} }}
    item_tower {{ input: "item" mlp {{ hidden_units: [16] }} }} output_dim: 8 {in_batch} }}
  {metrics} losses {{ softmax_cross_entropy {{}} }}
}}
train_config {{ sparse_optimizer {{ adam_optimizer {{ lr: 0.02 }} }}
  dense_optimizer {{ adam_optimizer {{ lr: 0.01 }} }} num_epochs: 4 }}
eval_config {{ {catalogue} }}
"""
SAMPLER = """negative_sampler {{ input_path: "{folder}/items.parquet" num_sample: 30
  attr_fields: ["brand", "liked", "noise"] item_id_field: "item_id" }}"""
CATALOGUE = """catalogue {{ item_input_path: "{folder}/items.parquet" item_id_field: "item_id"
  mask_seen: false top_k: 5 }}"""
METRICS = "metrics { recall_at_k { top_k: 3 } }"


def items() -> pa.Table:
    number = np.arange(ITEMS)
    rng = np.random.default_rng(9)
    return pa.table(
        {
            "id": number,
            "weight": np.ones(ITEMS),
            "item_id": number,
            "brand": number % 6,
            "liked": (number < 12).astype(np.float64),
            "noise": rng.integers(0, 6, ITEMS),
        }
    )


def rows(count: int, seed: int) -> pa.Table:
    """Users take items of their taste, mostly liked ones."""
    rng = np.random.default_rng(seed)
    taste = rng.integers(0, 6, count)
    item = taste + 6 * np.where(
        rng.random(count) < 0.6, rng.integers(0, 2, count), rng.integers(0, 10, count)
    )
    known = items()
    columns = {name: known[name].take(pa.array(item)) for name in ("item_id", "brand", "liked", "noise")}
    return pa.table({"taste": taste, "mood": rng.integers(0, 6, count), **columns})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("towers")
    pq.write_table(rows(4000, 0), folder / "train.parquet")
    pq.write_table(rows(500, 1), folder / "eval.parquet")
    pq.write_table(items(), folder / "items.parquet")
    return folder


def trained(folder: Path, name: str, sampler: str, metrics: str, catalogue: str, in_batch: str = "") -> str:
    text = CONFIG.format(
        folder=folder,
        name=name,
        sampler=sampler.format(folder=folder),
        metrics=metrics,
        catalogue=catalogue.format(folder=folder),
        in_batch=in_batch,
    )
    (folder / f"{name}.config").write_text(text)
    recgrad.train(str(folder / f"{name}.config"))
    return str(folder / name)


def mixed(table: pa.Table, name: str, deal: np.ndarray, path: Path) -> str:
    at = table.schema.get_field_index(name)
    pq.write_table(table.set_column(at, name, table[name].take(pa.array(deal))), path)
    return str(path)


def test_lists_of_the_catalogue_are_those_of_shuffled_files(folder: Path) -> None:
    model = trained(folder, "listed", SAMPLER, "", CATALOGUE)
    data = str(folder / "eval.parquet")
    found = feature_importance(model, data, repeats=1, seed=SEED)
    whole = recgrad.evaluate(model)
    assert found.metric == "catalogue_ndcg@5"
    assert dict(found.metrics) == pytest.approx({name: whole[name] for name in found.metrics}, abs=1e-6)
    by_unit = {worth.unit.name: worth.means["catalogue_ndcg@5"] for worth in found.worths}
    assert set(by_unit) == {"taste", "mood", "brand", "liked", "noise"}
    users = mixed(
        rows(500, 1), "taste", np.random.default_rng((SEED, 0, 0)).permutation(500), folder / "u.parquet"
    )
    lost = whole["catalogue_ndcg@5"] - recgrad.evaluate(model, eval_input_path=users)["catalogue_ndcg@5"]
    assert by_unit["taste"] == pytest.approx(lost, abs=1e-6)
    deal = np.random.default_rng((SEED, 0, 1)).permutation(ITEMS)
    catalogue = mixed(items(), "brand", deal, folder / "i.parquet")
    edits = {"eval_config.catalogue.item_input_path": catalogue}
    lost = whole["catalogue_ndcg@5"] - recgrad.evaluate(model, edit_config_json=edits)["catalogue_ndcg@5"]
    assert by_unit["brand"] == pytest.approx(lost, abs=1e-6)
    assert min(by_unit["taste"], by_unit["brand"], by_unit["liked"]) > 0.1
    assert max(by_unit["mood"], by_unit["noise"]) < 0.05


@pytest.mark.parametrize("in_batch", [False, True])
def test_sampled_metrics(in_batch: bool, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "in_batch" if in_batch else "sampled"
    flag = "in_batch_negative: true" if in_batch else ""
    model = trained(folder, name, "" if in_batch else SAMPLER, METRICS, "", flag)
    data = str(folder / "eval.parquet")
    found = feature_importance(model, data, repeats=3)
    assert found.metrics["recall@3"] == pytest.approx(recgrad.evaluate(model)["recall@3"], abs=1e-6)
    by_unit = {worth.unit.name: worth.means["recall@3"] for worth in found.worths}
    assert min(by_unit["taste"], by_unit["brand"]) > 0.1
    assert max(by_unit["mood"], by_unit["noise"]) < 0.05
    if not in_batch:
        assert by_unit["liked"] > 0.1, "own items are liked ones, drawn items seldom are"
    again = feature_importance(model, data, repeats=3)
    assert {worth.unit.name: worth.means["recall@3"] for worth in again.worths} == by_unit
    assert main(["importance", model, "--data", data, "--rows", "200", "--metric", "recall@3"]) == 0
    assert "reduced.config" in capsys.readouterr().out
    assert main(["check", f"{model}/importance/reduced.config"]) == 0
    capsys.readouterr()
    assert main(["importance", model, "--data", data, "--metric", "recal"]) == 2
    assert "did you mean 'recall@3'" in capsys.readouterr().err


def test_without_a_metric_it_says_what_to_add(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = trained(folder, "bare", SAMPLER, "", "")
    assert main(["importance", model, "--data", str(folder / "eval.parquet")]) == 2
    assert "add recall_at_k { top_k: 10 }, or eval_config.catalogue" in capsys.readouterr().err


def batch_of(values: list[float], **more: object) -> Batch:
    """Rows with a dense feature and the same as ids, twice each but the first."""
    lengths = torch.tensor([1] + [2] * (len(values) - 1), dtype=torch.int32)
    ids = torch.repeat_interleave(torch.tensor(values).long(), lengths)
    return Batch(
        size=len(values),
        dense=KeyedDense(("x",), (1,), torch.tensor(values)[:, None]),
        sparse=KeyedJagged(("a",), ids, lengths, (len(values),)),
        **more,  # type: ignore[arg-type]
    )


def test_values_of_own_items_go_to_drawn_ones_and_back() -> None:
    drawn = batch_of([10.0, 11, 12, 13])
    for own in (None, torch.tensor([0, 1, 2])):
        compared = Comparison(torch.zeros(0, 2, dtype=torch.int64), own=own)
        rows = batch_of([1.0, 2, 3], negatives=drawn, comparison=compared)
        dealt = _dealt_batch(rows, {"x", "a"}, (0, 0))
        assert dealt.negatives is not None
        values = torch.cat([dealt.dense.values, dealt.negatives.dense.values])[:, 0]
        assert sorted(values.tolist()) == [1, 2, 3, 10, 11, 12, 13]
        bags = [dealt.sparse, dealt.negatives.sparse]
        first = torch.cat([ids.values[ids.offsets[:-1]] for ids in bags])
        assert first.tolist() == values.tolist(), "features of a unit are dealt out together"
        stays = set(dealt.dense.values[:, 0].tolist()) == {1, 2, 3}
        assert stays == (own is not None), "own items of a whole catalogue are among its items"
    both = stack_features(batch_of([1.0, 2]), batch_of([3.0]))
    assert both.sparse.values.tolist() == [1, 2, 2, 3]
    assert (both.size, both.sparse.bag_counts) == (3, (3,))
