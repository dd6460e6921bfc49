"""Every kind of model through the whole loop: train, evaluate, predict, resume."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from google.protobuf import text_format

import recgrad
from recgrad.config import PipelineConfig, save_config
from recgrad.training.checkpoint import read_checkpoint

GROUPS = """
feature_groups {{ group_name: "all" group_type: DEEP feature_names: [{names}] }}
"""
MLP = "hidden_units: [8]"


def names(config: PipelineConfig) -> str:
    return ", ".join(
        f'"{name}"' for group in config.model_config.feature_groups[2:] for name in group.feature_names
    )


def with_model(config: PipelineConfig, text: str) -> PipelineConfig:
    """The same run with another model."""
    groups = GROUPS.format(names=names(config))
    config.ClearField("model_config")
    text_format.Parse(groups + text, config.model_config)
    config.train_config.ClearField("num_epochs")
    config.train_config.ClearField("save_checkpoints_epochs")
    config.train_config.num_steps = 8
    config.train_config.save_checkpoints_steps = 4
    return config


def tower(name: str, label: str, extra: str = "") -> str:
    return (
        f'task_towers {{ tower_name: "{name}" label_name: "{label}" mlp {{ {MLP} }} {extra} '
        "losses { binary_cross_entropy {} } metrics { auc {} } train_metrics { auc {} } }"
    )


@pytest.fixture
def multi_task(config: PipelineConfig) -> PipelineConfig:
    config.data_config.label_fields.extend(["conversion", "long_view"])
    towers = tower("ctr", "label") + tower("cvr", "conversion", 'task_space_indicator_label: "label"')
    return with_model(config, f"mmoe {{ num_expert: 3 expert_mlp {{ {MLP} }} {towers} }}")


def test_a_multi_task_run_names_its_metrics_and_predictions_by_task(
    multi_task: PipelineConfig, tmp_path: Path, clicks: Path
) -> None:
    multi_task.export_config.exporter_type = "best"
    multi_task.export_config.best_exporter_metric = "auc_cvr"
    result = recgrad.train(multi_task)
    assert set(result.metrics) == {"auc_ctr", "auc_cvr"}
    recgrad.predict(multi_task, input_path=str(clicks / "eval.parquet"), output_path=tmp_path / "p.parquet")
    assert pq.read_table(tmp_path / "p.parquet").column_names == ["probs_ctr", "probs_cvr"]
    line = json.loads((result.model_dir / "events.jsonl").read_text().splitlines()[1])
    assert {"binary_cross_entropy_ctr", "binary_cross_entropy_cvr", "total"} == set(line["losses"])


def test_pareto_weights_train_and_change_the_total(multi_task: PipelineConfig, tmp_path: Path) -> None:
    recgrad.train(multi_task, model_dir=tmp_path / "sum")
    multi_task.model_config.use_pareto_loss_weight = True
    recgrad.train(multi_task, model_dir=tmp_path / "pareto")
    for name in ("sum", "pareto"):
        events = (tmp_path / name / "events.jsonl").read_text().splitlines()
        losses = next(json.loads(line)["losses"] for line in events if '"train"' in line)
        parts = losses["binary_cross_entropy_ctr"] + losses["binary_cross_entropy_cvr"]
        assert (losses["total"] == pytest.approx(parts, rel=1e-5)) is (name == "sum")


def test_sequences_reach_the_model(config: PipelineConfig) -> None:
    sequence = text_format.Parse(
        'feature_configs { sequence_id_feature { feature_name: "click_seq" num_buckets: 100000 '
        'embedding_dim: 4 embedding_name: "cat_0_emb" sequence_length: 20 } }',
        PipelineConfig(),
    )
    config.MergeFrom(sequence)
    config.data_config.label_fields[:] = ["long_view"]
    with_model(
        config,
        """
        feature_groups { group_name: "seq" group_type: SEQUENCE feature_names: ["cat_0", "click_seq"] }
        multi_tower_din {
          towers { input: "all" mlp { hidden_units: [8] } }
          din_towers { input: "seq" attn_mlp { hidden_units: [8] } }
          final { hidden_units: [8] }
        }
        losses { binary_cross_entropy {} } metrics { auc {} }
        """,
    )
    result = recgrad.train(config)
    snapshot = read_checkpoint(result.model_dir / f"model.ckpt-{result.step}")
    (shared,) = [table for table in snapshot.tables if table.name == "cat_0_emb"]
    shown = len(set(pq.read_table(config.train_input_path)["cat_0"].to_pylist()))
    assert len(shared.row_ids) > shown  # rows of the sequence were trained in the shared table


def test_two_towers_with_in_batch_negatives(config: PipelineConfig, tmp_path: Path, clicks: Path) -> None:
    with_model(config, "")
    del config.model_config.feature_groups[:]
    text_format.Parse(
        """
        feature_groups { group_name: "user" group_type: DEEP feature_names: ["cat_22", "cat_23", "int_0"] }
        feature_groups { group_name: "item" group_type: DEEP feature_names: ["cat_0", "cat_1"] }
        dssm {
          user_tower { input: "user" mlp { hidden_units: [8] } }
          item_tower { input: "item" mlp { hidden_units: [8] } }
          output_dim: 4 similarity: COSINE temperature: 0.1 in_batch_negative: true
        }
        losses { softmax_cross_entropy {} } metrics { recall_at_k { top_k: 5 } }
        """,
        config.model_config,
    )
    result = recgrad.train(config)
    assert 0 <= result.metrics["recall@5"] <= 1
    source = pq.read_table(clicks / "eval.parquet").slice(0, 700)  # two batches, of 512 and 188 rows
    pq.write_table(source, tmp_path / "in.parquet")
    recgrad.predict(config, input_path=str(tmp_path / "in.parquet"), output_path=tmp_path / "p.parquet")
    similarity = pq.read_table(tmp_path / "p.parquet")["similarity"].to_numpy()
    assert len(similarity) == 700
    assert np.abs(similarity).max() <= 1 / 0.1 + 1e-4  # cosines over the temperature


def test_regression_predicts_values(config: PipelineConfig, tmp_path: Path, clicks: Path) -> None:
    with_model(
        config,
        "dcn_v2 { cross { cross_num: 2 low_rank: 4 } final { hidden_units: [8] } } "
        "losses { l2_loss {} } metrics { mean_squared_error {} }",
    )
    assert recgrad.train(config).metrics["mean_squared_error"] > 0
    recgrad.predict(config, input_path=str(clicks / "eval.parquet"), output_path=tmp_path / "p.parquet")
    assert pq.read_table(tmp_path / "p.parquet").column_names == ["y"]


def test_frozen_tables_stay_as_they_were_drawn_and_resume(config: PipelineConfig, tmp_path: Path) -> None:
    for feature in config.feature_configs:
        if feature.id_feature.feature_name == "cat_1":
            feature.id_feature.trainable = False
    config.train_config.num_epochs = 1
    whole = recgrad.train(config, model_dir=tmp_path / "m")
    assert recgrad.evaluate(config, checkpoint_path=tmp_path / "m") == whole.metrics
    config.train_config.num_epochs = 2
    assert recgrad.train(config, model_dir=tmp_path / "m", continue_train=True).step == 2 * whole.step


def test_fine_tuning_starts_from_the_weights_of_another_run(
    config: PipelineConfig, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "recgrad")
    first = recgrad.train(config, model_dir=tmp_path / "first")
    config.train_config.sparse_optimizer.adam_optimizer.lr = 0
    config.train_config.dense_optimizer.adam_optimizer.lr = 0
    tuned = recgrad.train(config, model_dir=tmp_path / "tuned", fine_tune_checkpoint=str(tmp_path / "first"))
    assert tuned.metrics == first.metrics  # with rates of 0 nothing moves
    assert "restored" in caplog.text


@pytest.mark.slow
def test_torchrun_with_one_process_is_a_plain_run(config: PipelineConfig, tmp_path: Path) -> None:
    config.train_config.num_epochs = 1
    whole = recgrad.train(config, model_dir=tmp_path / "plain")
    save_config(config, tmp_path / "run.config")
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=1", "--standalone"]
    command += ["-m", "recgrad.train_eval", "--pipeline_config_path", str(tmp_path / "run.config")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--model_dir", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    line = json.loads((tmp_path / "run/train_eval_result.txt").read_text())
    assert line["auc"] == pytest.approx(whole.metrics["auc"], abs=2e-5)
