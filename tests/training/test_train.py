"""A run from config to files: what is written, what is refused, what repeats."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recgrad
from recgrad.cli.main import main
from recgrad.config import PipelineConfig, load_config
from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.errors import ConfigError, DataError, RecgradError
from recgrad.training.checkpoint import read_checkpoint
from recgrad.training.task import Task


def test_a_run_writes_its_config_version_events_results_and_checkpoint(config: PipelineConfig) -> None:
    result = recgrad.train(config)
    folder = Path(config.model_dir)
    assert result.model_dir == folder
    assert load_config(folder / "pipeline.config") == config
    assert (folder / "version").read_text().strip() == recgrad.__version__
    line = json.loads((folder / "train_eval_result.txt").read_text())
    assert line == {"global_step": result.step, **result.metrics}
    assert list(line)[1:] == sorted(list(line)[1:])
    assert (folder / f"model.ckpt-{result.step}").is_dir()
    events = [json.loads(text) for text in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["kind"] for event in events] == ["start", *["train"] * (len(events) - 3), "eval", "end"]
    assert events[1]["losses"]["total"] > 0


def test_evaluating_the_checkpoint_gives_the_metrics_of_the_run(config: PipelineConfig) -> None:
    result = recgrad.train(config)
    assert recgrad.evaluate(config) == result.metrics


def test_the_same_seed_gives_the_same_weights_and_another_does_not(
    config: PipelineConfig, tmp_path: Path
) -> None:
    ends = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        config.train_config.seed = seed
        result = recgrad.train(config, model_dir=tmp_path / name)
        ends.append(read_checkpoint(tmp_path / name / f"model.ckpt-{result.step}"))
    weight = next(iter(ends[0].tree["model"]))
    assert ends[0].tree["model"][weight].equal(ends[1].tree["model"][weight])
    assert not ends[0].tree["model"][weight].equal(ends[2].tree["model"][weight])
    assert [t.weights.tobytes() for t in ends[0].tables] == [t.weights.tobytes() for t in ends[1].tables]


def test_a_used_model_dir_is_refused_without_continue_train(config: PipelineConfig) -> None:
    Path(config.model_dir).mkdir()
    (Path(config.model_dir) / "notes.txt").write_text("precious")
    with pytest.raises(RecgradError, match=r"is not empty; resume .* \(--continue_train\)"):
        recgrad.train(config)
    assert [p.name for p in Path(config.model_dir).iterdir()] == ["notes.txt"]


def test_a_run_that_failed_before_its_first_step_may_be_started_again(config: PipelineConfig) -> None:
    rows = config.data_config.batch_size
    config.data_config.batch_size, config.data_config.drop_remainder = 100_000, True
    with pytest.raises(DataError):
        recgrad.train(config)
    left = {path.name for path in Path(config.model_dir).iterdir()}
    assert {"events.jsonl", "pipeline.config"} <= left
    config.data_config.batch_size = rows
    result = recgrad.train(config)
    assert result.step > 0
    starts = [line for line in (Path(config.model_dir) / "events.jsonl").open() if '"kind": "start"' in line]
    assert len(starts) == 1
    with pytest.raises(RecgradError, match="is not empty"):
        recgrad.train(config)


@pytest.mark.parametrize("lost", ["events.jsonl", None])
def test_what_may_be_of_worth_is_not_removed(config: PipelineConfig, lost: str | None) -> None:
    folder = Path(config.model_dir)
    config.data_config.batch_size, config.data_config.drop_remainder = 100_000, True
    with pytest.raises(DataError):
        recgrad.train(config)
    (folder / lost).unlink() if lost else (folder / "notes.txt").write_text("precious")
    left = {path.name for path in folder.iterdir()}
    with pytest.raises(RecgradError, match="is not empty"):
        recgrad.train(config)
    assert {path.name for path in folder.iterdir()} == left


@pytest.mark.parametrize("num_steps", [0, 10])
def test_an_epoch_without_a_batch_is_an_error_and_not_an_endless_run(
    config: PipelineConfig, num_steps: int
) -> None:
    config.data_config.batch_size = 100_000
    config.data_config.drop_remainder = True
    if num_steps:
        config.train_config.ClearField("num_epochs")
        config.train_config.num_steps = num_steps
    with pytest.raises(DataError, match=r"^data: an epoch has no batch of 100,000 good rows; .*remainder"):
        recgrad.train(config)


def test_an_epoch_of_bad_rows_alone_is_an_error(config: PipelineConfig, tmp_path: Path) -> None:
    table = pq.read_table(config.train_input_path)
    labels = pa.array([7] * table.num_rows)
    table = table.set_column(table.column_names.index("label"), "label", labels)
    config.train_input_path = str(tmp_path / "bad.parquet")
    pq.write_table(table, config.train_input_path)
    config.data_config.on_bad_row = DataConfig.SKIP
    config.data_config.max_bad_row_ratio = 1.0
    with pytest.raises(DataError, match=r"^data: all rows of an epoch are bad, .*; correct those named"):
        recgrad.train(config)


def test_all_problems_come_at_once_before_data_is_read(config: PipelineConfig) -> None:
    config.train_input_path = "nowhere.parquet"
    config.train_config.num_steps = 10
    config.model_config.feature_groups[0].feature_names.append("cat_77")
    with pytest.raises(ConfigError) as caught:
        recgrad.train(config)
    text = str(caught.value)
    assert "num_steps and num_epochs are both set" in text
    assert "'cat_77'" in text
    assert not Path(config.model_dir).exists()


def test_a_run_of_one_process_says_once_that_it_spreads_no_tables(
    config: PipelineConfig, caplog: pytest.LogCaptureFixture
) -> None:
    config.train_config.global_embedding_constraints.sharding_types.append("row_wise")
    for feature in config.feature_configs:
        if feature.HasField("id_feature"):
            feature.id_feature.embedding_constraints.sharding_types.append("row_wise")
    recgrad.train(config)
    (said,) = [line for line in caplog.messages if "constraints" in line]
    assert said.startswith("hint: train_config.global_embedding_constraints: has no effect in one process")


def test_num_steps_ends_the_run_there(config: PipelineConfig) -> None:
    config.train_config.ClearField("num_epochs")
    config.train_config.ClearField("save_checkpoints_epochs")
    config.train_config.num_steps = 7
    config.train_config.save_checkpoints_steps = 3
    assert recgrad.train(config).step == 7
    folder = Path(config.model_dir)
    saved = sorted(int(path.name.split("-")[1]) for path in folder.glob("model.ckpt-*"))
    assert saved == [3, 6, 7]
    lines = (folder / "train_eval_result.txt").read_text().splitlines()
    assert [json.loads(line)["global_step"] for line in lines] == [3, 6, 7]


def test_keep_checkpoint_max_keeps_the_newest_and_the_best(config: PipelineConfig) -> None:
    config.train_config.ClearField("num_epochs")
    config.train_config.ClearField("save_checkpoints_epochs")
    config.train_config.num_steps = 10
    config.train_config.save_checkpoints_steps = 2
    config.train_config.keep_checkpoint_max = 2
    config.export_config.exporter_type = "best"
    config.export_config.best_exporter_metric = "log_loss"
    config.export_config.metric_larger_is_better = False
    recgrad.train(config)
    folder = Path(config.model_dir)
    lines = [json.loads(line) for line in (folder / "train_eval_result.txt").read_text().splitlines()]
    best = min(lines, key=lambda line: line["log_loss"])["global_step"]
    saved = {int(path.name.split("-")[1]) for path in folder.glob("model.ckpt-*")}
    assert saved == {8, 10} | {best}


def test_early_stopping_ends_the_run_and_says_why(config: PipelineConfig) -> None:
    config.train_config.ClearField("num_epochs")
    config.train_config.ClearField("save_checkpoints_epochs")
    config.train_config.num_steps = 50
    config.train_config.save_checkpoints_steps = 2
    config.train_config.early_stopping.metric = "auc"
    config.train_config.early_stopping.patience = 2
    config.train_config.early_stopping.min_delta = 1.0  # nothing improves that much
    result = recgrad.train(config)
    assert result.step == 6
    assert result.stopped.startswith("early stopping: auc has not improved by more than 1 for 2 evaluations")


def test_an_unknown_early_stopping_metric_is_found_before_the_run(config: PipelineConfig) -> None:
    config.train_config.early_stopping.metric = "aux"
    with pytest.raises(ConfigError, match=r"early_stopping\.metric: .* 'aux'; did you mean 'auc'"):
        recgrad.train(config)


def test_a_loss_that_is_not_finite_stops_the_run_with_rows_and_terms(config: PipelineConfig) -> None:
    config.train_config.dense_optimizer.sgd_optimizer.lr = 1e30
    config.train_config.sparse_optimizer.adam_optimizer.lr = 0.02
    with pytest.raises(
        RecgradError, match=r"the loss is not finite .*rows \d+–\d+ of .*train.parquet"
    ) as caught:
        recgrad.train(config)
    tenth = "lower the learning rate (try dense 1e+29 instead of 1e+30, sparse 0.002 instead of 0.02)"
    assert f"{tenth}, or clip gradients (train_config.grad_clipping), or skip" in str(caught.value)


def test_on_nan_skip_counts_and_resumes(config: PipelineConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = recgrad.train(config, model_dir=config.model_dir + "-whole")
    calls = 0
    original = Task.losses

    def sometimes_nan(self: Task, outputs: Any, batch: Any) -> Any:
        nonlocal calls
        calls += 1
        terms = original(self, outputs, batch)
        return {name: loss * float("nan") for name, loss in terms.items()} if calls in (2, 5) else terms

    monkeypatch.setattr(Task, "losses", sometimes_nan)
    config.train_config.on_nan = config.train_config.SKIP
    result = recgrad.train(config)
    assert result.step == whole.step - 2
    snapshot = read_checkpoint(Path(config.model_dir) / f"model.ckpt-{result.step}")
    assert snapshot.tree["state"]["skipped"] == 2


@pytest.mark.parametrize("form", ["path", "message", "dict"])
def test_a_config_may_be_a_path_a_message_or_a_dict(
    config: PipelineConfig, tmp_path: Path, form: str
) -> None:
    from google.protobuf.json_format import MessageToDict

    from recgrad.config import save_config

    config.train_config.ClearField("num_epochs")
    config.train_config.num_steps = 1
    save_config(config, tmp_path / "a.config")
    source = {
        "path": tmp_path / "a.config",
        "message": config,
        "dict": MessageToDict(config, preserving_proto_field_name=True),
    }[form]
    assert recgrad.train(source, model_dir=tmp_path / form).step == 1


def test_a_gradient_that_is_not_finite_stops_the_run_too(
    config: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Task.losses

    def with_infinite_gradient(self: Task, outputs: Any, batch: Any) -> Any:
        terms = original(self, outputs, batch)
        zero = (outputs["logits"] - outputs["logits"].detach()).sum()
        return {**terms, "total": terms["total"] + 3e38 * zero}

    monkeypatch.setattr(Task, "losses", with_infinite_gradient)
    with pytest.raises(RecgradError, match=r"a gradient is not finite while the loss is; rows \d+"):
        recgrad.train(config)


def test_skipping_everything_ends_after_a_while(
    config: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Task.losses
    monkeypatch.setattr(
        Task,
        "losses",
        lambda self, *a: {name: loss * float("nan") for name, loss in original(self, *a).items()},
    )
    config.train_config.on_nan = config.train_config.SKIP
    config.train_config.ClearField("num_epochs")
    config.train_config.num_steps = 5
    with pytest.raises(RecgradError, match="100 updates in a row were not finite") as caught:
        recgrad.train(config)
    assert "on_nan" not in str(caught.value)  # it is set already


def test_the_best_checkpoint_is_the_one_that_is_evaluated(config: PipelineConfig) -> None:
    config.train_config.ClearField("num_epochs")
    config.train_config.ClearField("save_checkpoints_epochs")
    config.train_config.num_steps = 6
    config.train_config.save_checkpoints_steps = 2
    config.export_config.exporter_type = "best"
    config.export_config.metric_larger_is_better = False  # the worst AUC: not the newest checkpoint
    recgrad.train(config)
    lines = (Path(config.model_dir) / "train_eval_result.txt").read_text().splitlines()
    worst = min((json.loads(line) for line in lines), key=lambda line: line["auc"])
    assert recgrad.evaluate(config)["auc"] == worst["auc"]


def test_the_moving_average_is_evaluated_unless_told_not_to(config: PipelineConfig) -> None:
    config.train_config.dense_optimizer.ema.decay = 0.9
    averaged = recgrad.train(config).metrics
    assert recgrad.evaluate(config) == averaged
    config.eval_config.use_dense_ema = False
    assert recgrad.evaluate(config) != averaged


def test_a_model_dir_stands_for_its_config_wherever_it_is_moved(
    config: PipelineConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    config.eval_config.log_step_count_steps = 1
    result = recgrad.train(config)
    Path(config.model_dir).rename(tmp_path / "moved")
    assert recgrad.evaluate(tmp_path / "moved") == result.metrics
    capsys.readouterr()
    moved = str(tmp_path / "moved")
    with caplog.at_level(logging.INFO, "recgrad.training"):
        assert main(["eval", moved]) == 0
    assert "evaluated 1/2 batches" in [record.getMessage() for record in caplog.records]
    assert f"auc: {result.metrics['auc']:.6f}" in capsys.readouterr().out
    rows, target = config.eval_input_path, str(tmp_path / "predicted.parquet")
    assert main(["predict", moved, "--predict_input_path", rows, "--predict_output_path", target]) == 0
    assert main(["check", moved]) == 0
    assert main(["schedule", moved, "--steps", "10"]) == 0
    assert main(["train", moved, "--continue_train"]) == 0
    assert "nothing was left to train" in capsys.readouterr().out
