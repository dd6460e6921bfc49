"""`recgrad list models --long`: parameters and multiply-adds against a count by hand."""

from __future__ import annotations

from itertools import pairwise

import pytest

from recgrad.cli.main import main
from recgrad.models.base import MODELS
from recgrad.models.sketches import sketched
from recgrad.report.costs import model_costs

CONFIG = """
train_input_path: "a.parquet" eval_input_path: "" model_dir: "m"
train_config { sparse_optimizer { adagrad_optimizer { lr: 0.1 } }
  dense_optimizer { adam_optimizer { lr: 0.001 } } }
data_config { dataset_type: ParquetDataset label_fields: "click" }
feature_configs { id_feature { feature_name: "a" num_buckets: 30 embedding_dim: 8 embedding_name: "t" } }
feature_configs { id_feature { feature_name: "b" num_buckets: 20 embedding_dim: 8 } }
feature_configs { id_feature { feature_name: "c" num_buckets: 10 embedding_dim: 8 } }
feature_configs { raw_feature { feature_name: "x" value_dim: 2 } }
feature_configs { sequence_id_feature { feature_name: "seen" num_buckets: 30 sequence_length: 9
  embedding_dim: 8 embedding_name: "t" } }
model_config { feature_groups { group_name: "deep" feature_names: ["a", "x"] } }
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "a.config"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def costs(config):
    from recgrad.config import load_config

    return {cost.name: cost for cost in model_costs(load_config(config))}


def chain(*widths):
    return sum(a * b for a, b in pairwise(widths))


def test_costs_are_those_of_a_count_by_hand(costs):
    deep = chain(26, 256, 128, 64)
    assert costs["multi_tower"].multiply_adds == deep + chain(64, 64, 1)
    assert costs["multi_tower"].parameters == deep + chain(64, 64, 1) + 256 + 128 + 64 + 64 + 1
    assert costs["multi_tower"].table_parameters == 60 * 8
    assert costs["wide_and_deep"].table_parameters == 60 * 8 + 60  # one weight an id
    assert costs["simple_multi_task"].multiply_adds == 2 * chain(26, 64, 1)
    assert costs["stem"].table_parameters == 3 * 60 * 8
    # Of 50 positions: [position, product with the query], then the layers of the attention; once the query.
    attention = 50 * (chain(16, 32) + chain(32, 16, 1)) + chain(8, 32)
    tower = deep + chain(64 + 8, 64, 1)
    assert costs["multi_tower_din"].multiply_adds == tower + attention
    assert costs["dbmtl"].multiply_adds - costs["mmoe"].multiply_adds > chain(128, 64)
    assert costs["dbmtl"].parameters != costs["dc2vr"].parameters


def test_every_ranking_model_has_a_sketch_that_fits_or_says_why(costs):
    # What learns from histories, items or codes has features of its own.
    other = {"tdm"} | {name for name, model in MODELS.items() if model.retrieval or model.learns_codes}
    assert {name for name in MODELS if name not in sketched()} - other <= {"dlrm_hstu", "ultra_hstu"}
    assert [name for name, cost in costs.items() if cost.problem] == []


def test_a_model_of_histories_says_that_there_is_none(config, capsys):
    config.write_text(CONFIG.replace('embedding_name: "t" } }', "} }"))
    assert main(["list", "models", "multi_tower_din", "--long", str(config)]) == 0
    assert "needs a sequence of ids, in a table that an id of the row shares" in capsys.readouterr().out


def test_a_model_that_does_not_fit_says_why(config, capsys):
    config.write_text(CONFIG.replace("embedding_dim: 8", "embedding_dim: 9"))
    assert main(["list", "models", "onn", "--long", str(config)]) == 0
    assert "fields must be a multiple of their number 4 wide" in capsys.readouterr().out


def test_the_command_prints_a_line_each_and_times_them(config, capsys, monkeypatch):
    monkeypatch.setattr("recgrad.report.costs.SECONDS", 0.0)
    assert main(["list", "models", "deepfm", "--long", str(config), "--time"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].split() == ["model", "parameters", "in", "tables", "multiply-adds/row", "rows/s"]
    assert lines[-1].startswith("deepfm")
    assert int(lines[-1].split()[-1].replace(",", "")) > 0


@pytest.mark.parametrize("words", [["losses", "--long", "x"], ["models", "--time"]])
def test_flags_that_do_not_go_together_are_refused(words, capsys):
    assert main(["list", *words]) == 2
    assert "is for `recgrad list models`" in capsys.readouterr().err
