"""`recgrad importance`: shuffled in memory, against a file that is shuffled; the reduced config trains."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import recgrad
from recgrad.check import check_config
from recgrad.cli.main import main
from recgrad.config import load_config
from recgrad.config.expand import expand_config
from recgrad.data.batch import Batch
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.faults import Faults
from recgrad.data.features.build import features_of
from recgrad.data.taking import only_features, take_rows, with_features
from recgrad.errors import RecgradError
from recgrad.report.importance import feature_importance, units_of
from recgrad.report.reduced import choose_dropped, reduced_config

CONFIG = """
train_input_path: "{folder}/train.parquet" eval_input_path: "{folder}/eval.parquet"
model_dir: "{folder}/model"
data_config {{ batch_size: 256 label_fields: ["click"] dataset_type: ParquetDataset num_workers: 0
  fg_mode: FG_DAG }}
feature_configs {{ id_feature {{ feature_name: "useful" expression: "item:useful" num_buckets: 50
  embedding_dim: 8 }} }}
feature_configs {{ id_feature {{ feature_name: "noise" expression: "item:noise" num_buckets: 50
  embedding_dim: 8 }} }}
feature_configs {{ raw_feature {{ feature_name: "number" expression: "item:number" }} }}
feature_configs {{ raw_feature {{ feature_name: "number_cut" expression: "item:number" boundaries: [0.0]
  embedding_dim: 8 }} }}
feature_configs {{ sequence_feature {{ sequence_name: "past" sequence_length: 5 sequence_delim: ";"
  features {{ id_feature {{ feature_name: "useful" expression: "item:useful" num_buckets: 50 embedding_dim: 8
    embedding_name: "useful_emb" }} }}
}} }}
model_config {{
  feature_groups {{ group_name: "deep" group_type: DEEP
    feature_names: ["useful", "noise", "number", "number_cut"]
    sequence_groups {{ group_name: "past" feature_names: ["useful", "past__useful"] }}
    sequence_encoders {{ din_encoder {{ input: "past" attn_mlp {{ hidden_units: [8] }} }} }} }}
  multi_tower {{ towers {{ input: "deep" mlp {{ hidden_units: [16] }} }} final {{ hidden_units: [8] }} }}
  metrics {{ auc {{}} }}
  losses {{ binary_cross_entropy {{}} }}
  variational_dropout {{ regularization_lambda: 0.05 }}
}}
train_config {{ sparse_optimizer {{ adagrad_optimizer {{ lr: 0.1 }} }}
  dense_optimizer {{ adam_optimizer {{ lr: 0.01 }} }} num_epochs: 2 }}
"""


def table(rows: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    useful, number = rng.integers(0, 50, rows), rng.normal(size=rows)
    logit = np.where(useful % 2 == 0, 2.0, -2.0) + number
    past = [";".join(map(str, rng.integers(0, 50, n))) for n in rng.integers(0, 4, rows)]
    return pa.table(
        {
            "useful": useful,
            "noise": rng.integers(0, 50, rows),
            "number": number,
            "past": past,
            "past__useful": past,
            "click": (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(np.int64),
        }
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("importance")
    pq.write_table(table(6000, 0), folder / "train.parquet")
    pq.write_table(table(1500, 1), folder / "eval.parquet")
    (folder / "own.config").write_text(CONFIG.format(folder=folder))
    recgrad.train(str(folder / "own.config"))
    return folder


def test_shuffling_in_memory_is_shuffling_the_file(folder: Path) -> None:
    found = feature_importance(str(folder / "model"), str(folder / "eval.parquet"), repeats=1, seed=3)
    rows = pq.read_table(folder / "eval.parquet")
    deal = np.random.default_rng(3).permutation(rows.num_rows)
    whole = recgrad.evaluate(str(folder / "model"))["auc"]
    assert found.metrics["auc"] == pytest.approx(whole, abs=1e-6)
    columns = {"useful": ["useful"], "past": ["past__useful"], "number": ["number"]}
    by_unit = {worth.unit.name: worth for worth in found.worths}
    assert set(by_unit) == {"useful", "noise", "number", "past"}
    for unit, names in columns.items():
        shuffled = rows
        for name in names:
            at = shuffled.schema.get_field_index(name)
            shuffled = shuffled.set_column(at, name, rows[name].take(pa.array(deal)))
        path = folder / f"{unit}.parquet"
        pq.write_table(shuffled, path)
        expected = whole - recgrad.evaluate(str(folder / "model"), eval_input_path=str(path))["auc"]
        assert by_unit[unit].means["auc"] == pytest.approx(expected, abs=1e-6)
    assert found.worths[0].unit.name == "useful"
    assert by_unit["number"].unit.features == ("number", "number_cut")


def test_the_command_writes_tables_a_picture_and_a_config_that_passes(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = ["importance", str(folder / "model"), "--data", str(folder / "eval.parquet"), "--repeats", "3"]
    assert main(line) == 0
    said = capsys.readouterr().out
    out = folder / "model/importance"
    with (out / "importance.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert lines[0]["unit"] == "useful"
    assert 0 < float(lines[0]["dropout"]) < 1
    assert float(lines[0]["auc"]) > 0.1 > abs(float(lines[-1]["auc"]))
    assert json.loads((out / "importance.json").read_text())["repeats"] == 3
    assert (out / "importance.png").read_bytes().startswith(b"\x89PNG")
    assert "recgrad train" in said
    reduced = load_config(out / "reduced.config")
    assert not check_config(expand_config(reduced)).problems
    assert "noise" not in (out / "reduced.config").read_text()
    assert main(["check", str(out / "reduced.config")]) == 0
    assert main([*line, "--top", "1", "--by", "dropout", "--groups", "a=useful,noise"]) == 0
    assert main([*line, "--groups", "a=usefull"]) == 2
    assert "did you mean" in capsys.readouterr().err


def test_what_a_kept_sequence_attends_with_stays(folder: Path) -> None:
    found = feature_importance(str(folder / "model"), str(folder / "eval.parquet"), repeats=2, rows=300)
    by_name = {worth.unit.name: worth.unit for worth in found.worths}
    config = found.trained.config
    reduced, stay = reduced_config(config, [by_name["noise"], by_name["useful"]])
    assert [unit.name for unit in stay] == ["useful"]
    assert not check_config(reduced).problems
    reduced, stay = reduced_config(config, [by_name["past"]])
    assert not stay
    assert not reduced.model_config.feature_groups[0].sequence_encoders
    assert [unit.name for unit in choose_dropped(found, top=3)] == [found.worths[-1].unit.name]
    with pytest.raises(RecgradError, match="--top"):
        choose_dropped(found, top=0)


def test_units_are_what_is_asked_for(folder: Path) -> None:
    found = feature_importance(str(folder / "model"), str(folder / "eval.parquet"), repeats=1, rows=50)

    def names(groups: str) -> dict[str, tuple[str, ...]]:
        return {unit.name: unit.features for unit in units_of(found.trained, groups)}

    assert set(names("feature")) == {"useful", "noise", "number", "number_cut", "past"}
    assert names("model") == {"deep": ("useful", "noise", "number", "number_cut", "past__useful")}
    own = names("both=past,noise")
    assert own["both"] == ("noise", "past__useful")
    assert set(own) == {"both", "useful", "number", "number_cut"}
    for wrong in ("a=noise;b=noise", "noise", "a="):
        with pytest.raises(RecgradError, match="--groups"):
            units_of(found.trained, wrong)
    with pytest.raises(RecgradError, match="--metric"):
        feature_importance(str(folder / "model"), str(folder / "eval.parquet"), metric="aucc")


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000), st.sets(st.sampled_from(["useful", "noise", "number", "past__useful"])))
def test_features_of_other_rows_take_the_place_of_own_ones(seed: int, names: set[str]) -> None:
    """Encoding a table whose columns were shuffled gives what shuffling after the encoding gives."""
    rows = table(7, seed)
    deal = np.random.default_rng(seed).permutation(7)
    features = features_of(_config())
    mixed = rows
    for name in names:
        at = mixed.schema.get_field_index(name)
        mixed = mixed.set_column(at, name, rows[name].take(pa.array(deal)))
    wanted = {
        *names,
        *(["number_cut"] if "number" in names else []),
        *(["past"] if "past__useful" in names else []),
    }
    batch = _encoded(features, rows)
    found = with_features(batch, take_rows(only_features(batch, wanted), torch.from_numpy(deal)))
    expected = _encoded(features, mixed)
    assert torch.equal(found.dense.values, expected.dense.values)
    for a, b in ((found.sparse, expected.sparse), (found.sequence_sparse, expected.sequence_sparse)):
        assert a is not None
        assert b is not None
        assert a.keys == b.keys
        assert torch.equal(a.values, b.values)
        assert torch.equal(a.lengths, b.lengths)
    for key, lengths in expected.sequence_lengths.items():
        assert torch.equal(found.sequence_lengths[key], lengths)


def _config() -> recgrad.PipelineConfig:
    from google.protobuf import text_format

    return expand_config(text_format.Parse(CONFIG.format(folder=""), recgrad.PipelineConfig()))


def _encoded(features: list, rows: pa.Table) -> Batch:
    faults = Faults()
    encoded = FeatureEncoder(features).encode_table(rows, faults)
    assert not faults
    return Batch.of(encoded)
