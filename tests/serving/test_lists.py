# ruff: noqa: E501
"""Models of histories from training to scores over HTTP: lists of candidates, and next items."""

from __future__ import annotations

import io
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from serving_fake import running

import recgrad
from recgrad.cli.main import main
from recgrad.data.list_column import ListColumn
from recgrad.errors import DataError
from recgrad.serving.holder import ModelHolder
from recgrad.serving.part import BadRowsError
from recgrad.serving.scorer import Scorer

pytestmark = pytest.mark.slow

# Times of the history are a sequence of their own, so that only the model knows that they go with it.
CONFIG = """
train_input_path: "DIR/rows.parquet"
eval_input_path: "DIR/rows.parquet"
model_dir: "DIR/model"
train_config {
  sparse_optimizer { adagrad_optimizer { lr: 0.1 } constant_learning_rate {} }
  dense_optimizer { adam_optimizer { lr: 0.01 } constant_learning_rate {} }
  num_epochs: 2
  use_tensorboard: false
}
data_config { batch_size: 20 dataset_type: ParquetDataset fg_mode: FG_NORMAL label_fields: "clicks" }
feature_configs { id_feature { feature_name: "city" expression: "user:city" num_buckets: 5 embedding_dim: 4 } }
feature_configs { sequence_feature { sequence_name: "seen" sequence_length: 100
  features { id_feature { feature_name: "item" expression: "item:item" num_buckets: 6 embedding_dim: 8 embedding_name: "item" } } } }
feature_configs { sequence_feature { sequence_name: "when" sequence_length: 100
  features { raw_feature { feature_name: "time" expression: "item:time" } } } }
feature_configs { sequence_feature { sequence_name: "shown" sequence_length: 100
  features { id_feature { feature_name: "item" expression: "item:item" num_buckets: 6 embedding_dim: 8 embedding_name: "item" } }
  features { raw_feature { feature_name: "time" expression: "item:time" } } } }
model_config {
  feature_groups { group_name: "contextual" feature_names: "city" group_type: DEEP }
  feature_groups { group_name: "uih" feature_names: "seen__item" group_type: JAGGED_SEQUENCE }
  feature_groups { group_name: "uih_timestamp" feature_names: "when__time" group_type: JAGGED_SEQUENCE }
  feature_groups { group_name: "candidate" feature_names: "shown__item" group_type: JAGGED_SEQUENCE }
  feature_groups { group_name: "candidate_timestamp" feature_names: "shown__time" group_type: JAGGED_SEQUENCE }
  dlrm_hstu {
    hstu {
      stu { embedding_dim: 8 num_heads: 2 hidden_dim: 4 attention_dim: 4 }
      attn_num_layers: 1
      positional_encoder { num_position_buckets: 16 num_time_buckets: 16 use_time_encoding: true }
      input_preprocessor { contextual_preprocessor {
        content_encoder { slice_content_encoder {} } content_mlp { simple_mlp { hidden_dim: 8 } } } }
      output_postprocessor { layernorm_postprocessor {} }
    }
    fusion_mtl_tower {
      mlp { hidden_units: 8 }
      task_configs { task_name: "click" label_name: "clicks" losses { binary_cross_entropy {} } metrics { auc {} } }
    }
    max_seq_len: 40
    item_embedding_hidden_dim: 8
  }
}
"""


def rows(count: int) -> dict[str, list[Any]]:
    rng = np.random.default_rng(0)
    names = ("city", "seen__item", "when__time", "shown__item", "shown__time", "clicks")
    found: dict[str, list[Any]] = {name: [] for name in names}
    for _ in range(count):
        n, t = int(rng.integers(1, 8)), int(rng.integers(1, 5))
        times = 1_700_000_000 + np.sort(rng.integers(0, 10_000, n + t))
        values = [int(rng.integers(0, 5)), rng.integers(0, 6, n), times[:n], rng.integers(0, 6, t), times[n:]]
        for name, value in zip(names, [*values, rng.integers(0, 2, t)], strict=True):
            found[name].append(value.tolist() if isinstance(value, np.ndarray) else value)
    return found


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that ranks lists of candidates, and its bundle."""
    pytest.importorskip("onnxruntime")
    path = tmp_path_factory.mktemp("lists")
    pq.write_table(pa.table(rows(80)), path / "rows.parquet")
    (path / "hstu.config").write_text(CONFIG.replace("DIR", str(path)))
    recgrad.train(path / "hstu.config")
    assert main(["export", str(path / "model"), "--export_dir", str(path / "bundle")]) == 0
    return path


def close(found: Any, expected: Any) -> None:
    assert [len(row) for row in found] == [len(row) for row in expected]
    np.testing.assert_allclose(np.concatenate(found), np.concatenate(expected), rtol=0, atol=1e-5)


@pytest.fixture(scope="module")
def expected(lists: Path) -> list[list[float]]:
    """What the checkpoint predicts."""
    recgrad.predict(
        lists / "model", input_path=str(lists / "rows.parquet"), output_path=lists / "trained.parquet"
    )
    return pq.read_table(lists / "trained.parquet")["probs_click"].to_pylist()


def test_a_bundle_predicts_the_lists_of_the_checkpoint(lists: Path, expected: list[list[float]]) -> None:
    target = lists / "bundled.parquet"
    recgrad.predict(lists / "bundle", input_path=str(lists / "rows.parquet"), output_path=target)
    table = pq.read_table(target)
    assert table.schema.field("probs_click").type == pa.list_(pa.float32())
    close(table["probs_click"].to_pylist(), expected)
    code = (
        "import sys, pyarrow.parquet as pq; from recgrad.serving.scorer import Scorer; "
        f"scorer = Scorer.load({str(lists / 'bundle')!r}); "
        f"found = scorer.score(pq.read_table({str(lists / 'rows.parquet')!r}))['probs_click']; "
        "assert 'torch' not in sys.modules; print(len(found), len(found.values))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(len(expected)), str(sum(map(len, expected)))]


@pytest.mark.parametrize("source", ["bundle", "model"])
def test_rows_in_memory_get_lists_in_their_own_form(
    lists: Path, expected: list[list[float]], source: str
) -> None:
    model = recgrad.load_model(lists / source)
    table = pq.read_table(lists / "rows.parquet").slice(0, 10)
    assert model.predict(table)["probs_click"].type == pa.list_(pa.float32())
    close(model.predict(table)["probs_click"].to_pylist(), expected[:10])
    close([row["probs_click"] for row in model.predict(table.to_pylist())], expected[:10])
    close(model.predict(table.to_pydict())["probs_click"], expected[:10])
    pandas, polars = pytest.importorskip("pandas"), pytest.importorskip("polars")
    found = model.predict(table.to_pandas())
    assert isinstance(found, pandas.DataFrame)
    close(found["probs_click"], expected[:10])
    found = model.predict(polars.from_arrow(table))
    close(found["probs_click"].to_list(), expected[:10])
    assert len(model.predict(table.slice(0, 0))) == 0


def test_what_features_add_is_a_list_for_each_row(lists: Path) -> None:
    table = pq.read_table(lists / "rows.parquet").slice(0, 4)
    moved = Scorer.load(lists / "bundle").explain(table)["probs_click"]
    lengths = [len(row) for row in table["shown__item"].to_pylist()]
    for change in moved.values():
        assert isinstance(change, ListColumn)
        assert change.lengths.tolist() == lengths
    assert np.isfinite(moved["city"].values).all()
    assert np.isnan(moved["shown__item"].values).all()  # without candidates there is nothing to compare


def test_long_histories_are_scored_in_pieces(lists: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = Scorer.load(lists / "bundle")
    table = pq.read_table(lists / "rows.parquet")
    whole = scorer.score(table)["probs_click"]
    monkeypatch.setattr("recgrad.serving.part.MOST_PAIRS", 300)
    pieces = scorer.score(table)["probs_click"]
    assert pieces.lengths.tolist() == whole.lengths.tolist()
    np.testing.assert_allclose(pieces.values, whole.values, rtol=0, atol=1e-6)


def test_rows_whose_sequences_differ_in_length_are_named(lists: Path) -> None:
    scorer = Scorer.load(lists / "bundle")
    given = pq.read_table(lists / "rows.parquet").slice(0, 6).to_pylist()
    given[3]["when__time"] = given[3]["when__time"][:-1]
    with pytest.raises(
        BadRowsError, match=r"row 3: feature when__time: .* and feature seen__item has another"
    ):
        scorer.score(pa.Table.from_pylist(given))
    with pytest.raises(DataError, match=r"group uih_timestamp: .*row 3"):
        recgrad.load_model(lists / "model").predict(pa.Table.from_pylist(given))


def test_lists_over_http(lists: Path, expected: list[list[float]]) -> None:
    given = pq.read_table(lists / "rows.parquet").to_pylist()[:5]
    for row in given:
        del row["clicks"]
    holder = ModelHolder("bundle", load=lambda _: Scorer.load(lists / "bundle"))
    with running(holder) as served:
        client = served.client()
        status, answer = client.score({"rows": given})
        assert status == 200, answer
        close(answer["scores"]["probs_click"], expected[:5])
        arrow = client.ask(
            "POST", "/v1/score", {"rows": given}, {"accept": "application/vnd.apache.arrow.stream"}
        )[1]
        close(pa.ipc.open_stream(io.BytesIO(arrow)).read_all()["probs_click"].to_pylist(), expected[:5])
        # One user with rows of candidates, each a list.
        of_user = {name: given[2][name] for name in ("city", "seen__item", "when__time")}
        shown = [{name: row[name] for name in ("shown__item", "shown__time")} for row in given]
        joined = [{**of_user, **row} for row in shown]
        status, answer = client.score({"user": of_user, "items": shown})
        assert status == 200, answer
        close(answer["scores"]["probs_click"], client.score({"rows": joined})[1]["scores"]["probs_click"])
        bad = [dict(row) for row in given]
        bad[1]["shown__item"] = [99] * len(bad[1]["shown__item"])
        status, answer = client.score({"rows": bad})
        assert status == 422
        assert answer["error"]["rows"][0]["row"] == 1
        status, answer = client.score({"rows": bad, "on_bad_row": "null"})
        assert status == 200, answer
        found = answer["scores"]["probs_click"]
        assert found[1] is None
        close([found[0], *found[2:]], [expected[0], *expected[2:5]])
        status, answer = client.ask("POST", "/v1/explain", {"rows": given[:2]})
        assert status == 200, answer
        assert [len(row) for row in answer["moved"]["probs_click"]["city"]] == [len(r) for r in expected[:2]]


HSTU = """  feature_groups { group_name: "times" feature_names: "history__timestamp" group_type: JAGGED_SEQUENCE }
  feature_groups { group_name: "now" feature_names: "timestamp" group_type: DEEP }
  hstu { input: "history" item_tower { input: "item" } max_seq_len: 50 num_heads: 2 temperature: 0.05
    time_input: "times" request_time_input: "now" }
"""
TIME = 'features { raw_feature { feature_name: "timestamp" expression: "item:timestamp" } }'
NOW = """feature_configs { raw_feature { feature_name: "timestamp" expression: "user:timestamp" data_type: "FP64" } }
model_config {"""


def test_hstu_scores_a_history_with_times_over_http(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(0)
    log = [
        {"user": user, "item_id": 1 + (int(start) + i) % 20, "timestamp": 1_700_000_000 + 3600 * i + user}
        for user, start in enumerate(rng.integers(0, 20, 100))
        for i in range(int(rng.integers(4, 9)))
    ]
    pq.write_table(pa.Table.from_pylist(log), tmp_path / "log.parquet")
    flags = ["--user", "user", "--item", "item_id", "--time", "timestamp", "--out", str(tmp_path)]
    assert main(["sequences", str(tmp_path / "log.parquet"), *flags]) == 0
    text = (tmp_path / "sasrec.config").read_text()
    text = re.sub(r"  sasrec \{.*?\n  \}\n", HSTU, text, flags=re.DOTALL)
    text = re.sub(r"sequence_length: \d+", rf"\g<0> {TIME}", text).replace("model_config {", NOW, 1)
    (tmp_path / "hstu.config").write_text(text)
    edits = {"train_config.num_epochs": 2, "data_config.batch_size": 32}
    recgrad.train(tmp_path / "hstu.config", edit_config_json=edits, model_dir=str(tmp_path / "model"))
    assert main(["export", str(tmp_path / "model"), "--export_dir", str(tmp_path / "bundle")]) == 0
    items = ["--items", str(tmp_path / "items.parquet"), "--id_field", "item_id"]
    assert main(["index", str(tmp_path / "bundle"), *items, "--out", str(tmp_path / "index")]) == 0
    test = pq.read_table(tmp_path / "test.parquet").slice(0, 7)
    wanted = recgrad.load_model(tmp_path / "model").predict(test)["similarity"].to_numpy()
    holder = ModelHolder("bundle", load=lambda _: Scorer.load(tmp_path / "bundle"))
    with running(holder, index=str(tmp_path / "index")) as served:
        client = served.client()
        names = [field.name for field in Scorer.load(tmp_path / "bundle").schema]
        status, answer = client.score({"rows": test.select(names).to_pylist()})
        assert status == 200, answer
        np.testing.assert_allclose(answer["scores"]["similarity"], wanted, rtol=0, atol=1e-5)
        users = test.select([name for name in names if name != "item_id"]).to_pylist()
        status, answer = client.ask("POST", "/v1/recommend", {"users": users, "k": 20})
        assert status == 200, answer
        for row, own, score in zip(answer["users"], test["item_id"].to_pylist(), wanted, strict=True):
            # An index compares vectors, without the temperature.
            assert row["scores"][row["items"].index(own)] == pytest.approx(0.05 * score, abs=1e-5)
        users[0]["history__timestamp"] = users[0]["history__timestamp"][:-1]
        status, answer = client.ask("POST", "/v1/recommend", {"users": users[:1], "k": 3})
        assert status == 422
        assert "history" in str(answer)
