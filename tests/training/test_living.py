"""Tables whose rows belong to ids as they come, in whole runs: resume, other capacities, export."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import recgrad
from recgrad.config import PipelineConfig
from recgrad.errors import ConfigError, RecgradError
from recgrad.serving.scorer import Scorer
from recgrad.training.checkpoint import Snapshot, read_checkpoint


def living(config: PipelineConfig, capacity: int = 50) -> None:
    """Give some features zch and some dynamicemb, of all policies; ids come and go."""
    ids = [f.id_feature for f in config.feature_configs if f.HasField("id_feature")]
    for i, feature in enumerate(ids):
        feature.ClearField("num_buckets")
        if i % 2:
            zch = feature.zch
            zch.zch_size, zch.eviction_interval = capacity, 3
            getattr(zch, ("lfu", "lru", "distance_lfu")[i // 2 % 3]).SetInParent()
            if i % 3 == 0:
                zch.threshold_filtering_func = "lambda x: (x > 1, 1)"
        else:
            table = feature.dynamicemb
            table.max_capacity = 600 + capacity
            table.score_strategy = ("STEP", "LFU", "NO_EVICTION")[i // 2 % 3]
            if i % 4 == 0:
                table.frequency_admission_strategy.threshold = 2
            if i % 5 == 0:
                table.ttl_steps = 4
    config.train_config.ClearField("num_epochs")
    config.train_config.ClearField("save_checkpoints_epochs")
    config.train_config.num_steps = 12
    config.train_config.save_checkpoints_steps = 5


def contents(snapshot: Snapshot) -> dict[str, Any]:
    """All that tables hold, as bytes, and where the run is."""
    tree: Any = snapshot.tree
    found = {
        f"{name}.{key}": value.tobytes() for name, own in tree["living"].items() for key, value in own.items()
    }
    for table in snapshot.tables:
        found[table.name] = (table.row_ids.tobytes(), table.weights.tobytes())
        found |= {f"{table.name}/{key}": value.tobytes() for key, value in table.states.items()}
    return found


def end_of(folder: Path, step: int = 12) -> Snapshot:
    return read_checkpoint(folder / f"model.ckpt-{step}")


def test_a_run_that_stops_between_rounds_goes_on_exactly(config: PipelineConfig, tmp_path: Path) -> None:
    living(config)
    whole = recgrad.train(config, model_dir=tmp_path / "whole")
    config.train_config.num_steps = 5
    recgrad.train(config, model_dir=tmp_path / "parts")
    config.train_config.num_steps = 12
    parts = recgrad.train(config, model_dir=tmp_path / "parts", continue_train=True)
    assert contents(end_of(tmp_path / "whole")) == contents(end_of(tmp_path / "parts"))
    assert whole.metrics == parts.metrics
    turnover = [own["turnover"] for own in end_of(tmp_path / "whole").tree["living"].values()]  # type: ignore[union-attr]
    assert np.sum(turnover, axis=0)[:3].min() > 0  # admitted, evicted and expired


@pytest.mark.parametrize("capacity", [20, 90])
def test_capacity_may_change_at_any_resume(
    config: PipelineConfig, tmp_path: Path, capacity: int, caplog: pytest.LogCaptureFixture
) -> None:
    living(config)
    config.train_config.num_steps = 5
    recgrad.train(config, model_dir=tmp_path / "model")
    before = {table.name: table for table in end_of(tmp_path / "model", 5).tables}
    ids = [f.id_feature for f in config.feature_configs if f.HasField("id_feature")]
    for feature in ids:
        if feature.HasField("zch"):
            feature.zch.zch_size = capacity
    config.train_config.num_steps = 6
    with caplog.at_level(logging.WARNING):
        recgrad.train(config, model_dir=tmp_path / "model", continue_train=True)
    assert ("the policy values least" in caplog.text) == (capacity == 20)
    saved = read_checkpoint(tmp_path / "model" / "model.ckpt-6")
    for table in saved.tables:
        if f"{table.name}" in before and table.touched_rows < capacity:
            kept = np.isin(table.row_ids, before[table.name].row_ids)
            assert kept.any()


def test_ids_go_to_and_from_tables_with_num_buckets(config: PipelineConfig, tmp_path: Path) -> None:
    plain = PipelineConfig()
    plain.CopyFrom(config)
    living(config, capacity=2000)
    plain.train_config.CopyFrom(config.train_config)
    for part in (config, plain):
        part.train_config.num_steps = 3
    recgrad.train(plain, model_dir=tmp_path / "plain")
    config.train_config.num_steps = 1
    recgrad.train(config, model_dir=tmp_path / "living", fine_tune_checkpoint=str(tmp_path / "plain"))
    names = {t.name for t in end_of(tmp_path / "living", 1).tables}
    old = {t.name: t for t in end_of(tmp_path / "plain", 3).tables}
    for table in end_of(tmp_path / "living", 1).tables:
        own = old[table.name]
        assert np.isin(own.row_ids, table.row_ids).mean() > 0.2
    plain.train_config.num_steps = 1
    with pytest.raises(RecgradError, match=r"has 100000 rows of .*, the checkpoint's rows by id .zch or dyn"):
        recgrad.train(plain, model_dir=tmp_path / "living", continue_train=True)
    back = recgrad.train(plain, model_dir=tmp_path / "back", fine_tune_checkpoint=str(tmp_path / "living"))
    assert names == {t.name for t in end_of(tmp_path / "back", 1).tables}
    assert back.step == 1


def test_a_bundle_scores_known_and_unknown_ids_as_the_checkpoint(
    config: PipelineConfig, clicks: Path, tmp_path: Path
) -> None:
    living(config)
    recgrad.train(config, model_dir=tmp_path / "model")
    recgrad.export_model(tmp_path / "model", export_dir=tmp_path / "bundle")
    rows = pq.read_table(clicks / "eval.parquet")
    expected = recgrad.load_model(tmp_path / "model").scorer.score(rows)
    scores = Scorer.load(tmp_path / "bundle").score(rows)
    for name, values in expected.items():
        np.testing.assert_allclose(scores[name], values, rtol=0, atol=2e-6)


def test_what_came_and_went_is_in_the_events(config: PipelineConfig, tmp_path: Path) -> None:
    living(config)
    recgrad.train(config, model_dir=tmp_path / "model")
    events = [json.loads(line) for line in (tmp_path / "model" / "events.jsonl").read_text().splitlines()]
    last = [event for event in events if event["kind"] == "train"][-1]["turnover"]
    saved: Any = end_of(tmp_path / "model").tree
    assert {name: own["admitted"] for name, own in last.items()} == {
        name: int(own["turnover"][0]) for name, own in saved["living"].items()
    }


def test_evaluation_leaves_tables_as_they_are(config: PipelineConfig, tmp_path: Path) -> None:
    living(config)
    config.train_config.save_checkpoints_steps = 2
    recgrad.train(config, model_dir=tmp_path / "often")
    config.train_config.save_checkpoints_steps = 100
    recgrad.train(config, model_dir=tmp_path / "once")
    assert contents(end_of(tmp_path / "often")) == contents(end_of(tmp_path / "once"))


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("zch { zch_size: 9 }", "zch needs an eviction policy: one of lfu, lru, distance_lfu"),
        ("zch { zch_size: 1 lfu {} }", "zch_size must be in 2"),
        ("zch { zch_size: 9 lfu {} eviction_interval: 0 }", "eviction_interval must be in 1"),
        (
            "zch { zch_size: 9 lfu {} threshold_filtering_func: \"__import__('os')\" }",
            "it is read, never run",
        ),
        ("dynamicemb { max_capacity: 9 score_strategy: 'CUSTOMIZED' }", "CUSTOMIZED is set by a program"),
        ("dynamicemb { max_capacity: 9 score_strategy: 'STEPS' }", "did you mean 'STEP'"),
        ("dynamicemb { max_capacity: 9 eval_initializer_args { mode: 'ZERO' } }", "no mode 'ZERO'"),
        ("dynamicemb { max_capacity: 9 init_table: 'x.csv' }", "'x.csv': there is no such file"),
        ("dynamicemb { max_capacity: 9 } storage: COMPACT", "remove it beside dynamicemb"),
        ("dynamicemb { max_capacity: 9 } num_buckets: 4", "are both set; keep one"),
    ],
)
def test_settings_that_cannot_be_are_refused(config: PipelineConfig, setting: str, said: str) -> None:
    from google.protobuf import text_format

    feature = next(f.id_feature for f in config.feature_configs if f.HasField("id_feature"))
    feature.ClearField("num_buckets")
    text_format.Merge(setting, feature)
    with pytest.raises((ConfigError, RecgradError), match=said):
        recgrad.train(config)


def first_id(config: PipelineConfig, path: Path, capacity: int = 60) -> Any:
    """Let the first id feature begin with the rows of a file."""
    feature = next(f.id_feature for f in config.feature_configs if f.HasField("id_feature"))
    feature.ClearField("num_buckets")
    feature.dynamicemb.max_capacity = capacity
    feature.dynamicemb.init_table = str(path)
    config.train_config.ClearField("num_epochs")
    config.train_config.ClearField("save_checkpoints_epochs")
    config.train_config.num_steps = 1
    config.train_config.sparse_optimizer.adagrad_optimizer.lr = 1e-9
    return feature


def test_a_table_begins_with_the_rows_of_a_file(config: PipelineConfig, tmp_path: Path) -> None:
    vectors = np.arange(200, dtype=np.float32).reshape(50, 4)
    ids = [str(i) for i in range(1000, 1050)]  # nobody has them
    table = pa.table({"id": ids, "vector": vectors.tolist()})
    pq.write_table(table, tmp_path / "rows.parquet")
    text = [" ".join(map(str, row)) for row in vectors.tolist()]
    csv.write_csv(pa.table({"id": ids, "vector": [f"[{row}]" for row in text]}), tmp_path / "rows.csv")
    found = []
    for name in ("rows.parquet", "rows.csv"):
        feature = first_id(config, tmp_path / name)
        recgrad.train(config, model_dir=tmp_path / f"model.{name}")
        table_name = f"{feature.feature_name}_emb"
        saved = {t.name: t for t in end_of(tmp_path / f"model.{name}", 1).tables}[table_name]
        # Ids of the batch need room: rows that were never seen leave first, smaller keys before others.
        tree: Any = end_of(tmp_path / f"model.{name}", 1).tree
        unseen = tree["living"][table_name]["marks"] == 0
        kept = tree["living"][table_name]["keys"][unseen]
        assert 0 < len(kept) <= 50
        at = np.searchsorted(saved.row_ids, kept)
        assert (saved.row_ids[at] == kept).all()
        assert {tuple(row) for row in saved.weights[at].tolist()} <= {tuple(row) for row in vectors.tolist()}
        found.append(kept)
    assert (found[0] == found[1]).all()
    resumed = tmp_path / "model.rows.csv"
    (tmp_path / "rows.csv").unlink()
    config.train_config.num_steps = 2
    assert recgrad.train(config, model_dir=resumed, continue_train=True).step == 2  # reads no file


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"id": [1, 2], "vector": [[1.0] * 4, [1.0] * 3]}, "a vector has 3 numbers, and embedding_dim is 4"),
        ({"id": [1, 1], "vector": [[1.0] * 4] * 2}, "an id is there twice"),
        ({"id": [1, None], "vector": [[1.0] * 4] * 2}, "an id or a vector that is missing"),
        ({"id": [1], "vector": ["a b c d"]}, "cannot be read as numbers"),
        ({"id": [1], "vector": [2.0]}, "its second column is double"),
        ({"id": [1]}, "has 1 columns; it needs an id and a vector"),
        ({"id": [1], "vector": [[1.0, 2.0, 3.0, float("nan")]]}, "not finite"),
        ({"id": list(range(70)), "vector": [[1.0] * 4] * 70}, "has 70 ids, and max_capacity"),
    ],
)
def test_rows_to_begin_with_that_do_not_fit_are_refused(
    config: PipelineConfig, tmp_path: Path, columns: dict[str, Any], said: str
) -> None:
    pq.write_table(pa.table(columns), tmp_path / "rows.parquet")
    first_id(config, tmp_path / "rows.parquet")
    with pytest.raises(RecgradError, match=said):
        recgrad.train(config, model_dir=tmp_path / "model")
