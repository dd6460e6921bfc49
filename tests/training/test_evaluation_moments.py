"""When a run evaluates: each epoch where something watches, and the best evaluation beside the last."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import recgrad
from recgrad.config import PipelineConfig
from recgrad.training.checkpoint import CheckpointManager
from recgrad.training.hooks.events import EVENTS_FILE
from recgrad.training.state import TrainResult
from recgrad.training.task import Task

EPOCH = 4  # steps


class CrashError(Exception):
    """Stands for the process that is gone."""


@pytest.fixture
def config(config: PipelineConfig) -> PipelineConfig:
    """Five epochs of four steps, all of them shorter than the interval of checkpoints."""
    config.data_config.batch_size = 1_000
    config.train_config.num_epochs = 5
    config.train_config.ClearField("save_checkpoints_epochs")
    config.train_config.save_checkpoints_steps = 1_000
    return config


def watch_by_early_stopping(config: PipelineConfig) -> None:
    config.train_config.early_stopping.metric = "auc"
    config.train_config.early_stopping.patience = 100


def watch_by_best_checkpoint(config: PipelineConfig) -> None:
    config.export_config.exporter_type = "best"
    config.export_config.best_exporter_metric = "auc"


def watch_by_plateau(config: PipelineConfig) -> None:
    plateau = config.train_config.dense_optimizer.reduce_on_plateau_learning_rate
    plateau.metric, plateau.patience, plateau.factor, plateau.threshold = "auc", 0, 0.5, 1.0


WATCHERS = [watch_by_early_stopping, watch_by_best_checkpoint, watch_by_plateau]


def steps_evaluated(folder: Path) -> list[int]:
    lines = (folder / "train_eval_result.txt").read_text().splitlines()
    return [json.loads(line)["global_step"] for line in lines]


def same_end(one: Path, other: Path) -> bool:
    """Whether two runs evaluated alike and ended with the same bytes."""
    newest = [folder / f"model.ckpt-{CheckpointManager(folder).steps()[-1]}" for folder in (one, other)]
    files = [
        {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        for folder in newest
    ]
    lines = [(folder / "train_eval_result.txt").read_text() for folder in (one, other)]
    return files[0] == files[1] and lines[0] == lines[1]


@pytest.mark.parametrize("watch", WATCHERS)
def test_what_watches_is_told_each_epoch(
    config: PipelineConfig, watch: Callable[[PipelineConfig], None]
) -> None:
    watch(config)
    result = recgrad.train(config)
    assert steps_evaluated(result.model_dir) == [4, 8, 12, 16, 20]


def test_without_a_watcher_only_the_interval_and_the_end_count(config: PipelineConfig) -> None:
    assert steps_evaluated(recgrad.train(config).model_dir) == [20]


def test_early_stopping_ends_a_run_of_short_epochs(config: PipelineConfig) -> None:
    watch_by_early_stopping(config)
    config.train_config.early_stopping.patience = 2
    config.train_config.early_stopping.min_delta = 1.0
    result = recgrad.train(config)
    assert result.step == 3 * EPOCH
    assert result.stopped.startswith("early stopping: auc")


def test_an_epoch_that_was_evaluated_is_not_evaluated_again_at_its_end(config: PipelineConfig) -> None:
    watch_by_early_stopping(config)
    config.train_config.save_checkpoints_steps = 6
    # 6 is in the second epoch, 12 the end of the third, 18 in the fifth; 20 is the end of the run.
    assert steps_evaluated(recgrad.train(config).model_dir) == [4, 6, 12, 16, 18, 20]


def test_the_best_checkpoint_is_saved_where_it_was_evaluated(config: PipelineConfig) -> None:
    watch_by_best_checkpoint(config)
    config.export_config.metric_larger_is_better = False  # the first stays the best
    result = recgrad.train(config)
    assert CheckpointManager(result.model_dir).best() == result.best_step
    assert result.best_step in CheckpointManager(result.model_dir).steps()


@pytest.mark.parametrize("watch", WATCHERS)
@pytest.mark.parametrize("step", [3, 4, 5, 8])
def test_a_signal_around_the_end_of_an_epoch(
    config: PipelineConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    watch: Callable[[PipelineConfig], None],
    step: int,
) -> None:
    watch(config)
    config.train_config.num_epochs = 3
    recgrad.train(config, model_dir=tmp_path / "whole")
    with monkeypatch.context() as patch:
        _at(patch, "update_train_metrics", step, lambda: signal.raise_signal(signal.SIGTERM))
        stopped = recgrad.train(config, model_dir=tmp_path / "cut")
    assert (stopped.step, stopped.exit_code) == (step, 143)
    recgrad.train(config, model_dir=tmp_path / "cut", continue_train=True)
    assert same_end(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("batch", [1, 3])
def test_a_signal_in_the_evaluation_of_an_epoch(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    for watch in WATCHERS:
        watch(config)
    config.train_config.num_epochs = 3
    recgrad.train(config, model_dir=tmp_path / "whole")
    with monkeypatch.context() as patch:
        _at(patch, "update_metrics", batch, lambda: signal.raise_signal(signal.SIGTERM))
        assert recgrad.train(config, model_dir=tmp_path / "cut").exit_code == 143
    recgrad.train(config, model_dir=tmp_path / "cut", continue_train=True)
    assert same_end(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("step", [4, 5, 9])
def test_a_crash_after_the_evaluation_of_an_epoch(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """The evaluations after the last checkpoint are made again, and written once."""
    watch_by_early_stopping(config)
    watch_by_plateau(config)
    config.train_config.save_checkpoints_steps = 3
    recgrad.train(config, model_dir=tmp_path / "whole")

    def crash() -> None:
        raise CrashError

    with monkeypatch.context() as patch:
        _at(patch, "update_train_metrics", step, crash)
        with pytest.raises(CrashError):
            recgrad.train(config, model_dir=tmp_path / "cut")
    recgrad.train(config, model_dir=tmp_path / "cut", continue_train=True)
    assert same_end(tmp_path / "whole", tmp_path / "cut")


def test_a_signal_in_the_last_step_still_gets_the_last_evaluation(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a watcher: the continued run has no step to make, but the evaluation of its end."""
    config.train_config.num_epochs = 1
    recgrad.train(config, model_dir=tmp_path / "whole")
    with monkeypatch.context() as patch:
        _at(patch, "update_train_metrics", EPOCH, lambda: signal.raise_signal(signal.SIGTERM))
        recgrad.train(config, model_dir=tmp_path / "cut")
    recgrad.train(config, model_dir=tmp_path / "cut", continue_train=True)
    assert same_end(tmp_path / "whole", tmp_path / "cut")


def test_more_steps_after_an_epochs_end_do_not_tell_the_watchers_twice(
    config: PipelineConfig, tmp_path: Path
) -> None:
    watch_by_early_stopping(config)
    watch_by_plateau(config)
    config.train_config.ClearField("num_epochs")
    config.train_config.num_steps = 2 * EPOCH
    recgrad.train(config, model_dir=tmp_path / "parts")
    config.train_config.num_steps = 4 * EPOCH
    recgrad.train(config, model_dir=tmp_path / "parts", continue_train=True)
    recgrad.train(config, model_dir=tmp_path / "whole")
    assert same_end(tmp_path / "whole", tmp_path / "parts")


# The best evaluation


def lines_of(result: TrainResult) -> list[dict[str, Any]]:
    return [json.loads(x) for x in (result.model_dir / "train_eval_result.txt").read_text().splitlines()]


@pytest.mark.parametrize("larger", [True, False])
def test_the_result_has_the_best_metrics_and_their_step(config: PipelineConfig, larger: bool) -> None:
    watch_by_best_checkpoint(config)
    config.export_config.metric_larger_is_better = larger
    result = recgrad.train(config)
    lines = lines_of(result)
    best = (max if larger else min)(lines, key=lambda line: line["auc"])
    assert (result.best_metric, result.best_step) == ("auc", best["global_step"])
    assert {"global_step": result.best_step, **result.best_metrics} == best
    assert {"global_step": result.step, **result.metrics} == lines[-1]
    text = result.describe()
    if result.best_step == result.step:
        assert "best" in text.splitlines()[1]
    else:
        assert f"best by auc, step {result.best_step}:" in text
        assert f"last, step {result.step}:" in text


def test_the_best_is_remembered_over_a_resume(config: PipelineConfig, tmp_path: Path) -> None:
    watch_by_best_checkpoint(config)
    config.export_config.metric_larger_is_better = False
    whole = recgrad.train(config, model_dir=tmp_path / "whole")
    config.train_config.num_epochs = 3
    recgrad.train(config, model_dir=tmp_path / "parts")
    config.train_config.num_epochs = 5
    parts = recgrad.train(config, model_dir=tmp_path / "parts", continue_train=True)
    assert (parts.best_step, parts.best_metrics) == (whole.best_step, whole.best_metrics)
    nothing = recgrad.train(config, model_dir=tmp_path / "parts", continue_train=True)
    assert (nothing.best_step, nothing.metrics) == (whole.best_step, whole.metrics)


def test_without_a_watcher_the_first_metric_with_a_direction_decides(config: PipelineConfig) -> None:
    config.train_config.save_checkpoints_steps = 4
    del config.model_config.metrics[:]
    config.model_config.metrics.add().calibration.SetInParent()
    config.model_config.metrics.add().log_loss.SetInParent()
    config.model_config.metrics.add().auc.SetInParent()
    result = recgrad.train(config)
    assert result.best_metric == "log_loss"
    assert result.best_step == min(lines_of(result), key=lambda line: line["log_loss"])["global_step"]
    events = [json.loads(x) for x in (result.model_dir / EVENTS_FILE).read_text().splitlines()]
    last = [event for event in events if event["kind"] == "eval"][-1]
    assert last["best"] == {"metric": "log_loss", "step": result.best_step}


def test_a_run_without_evaluations_has_no_best(config: PipelineConfig) -> None:
    config.eval_input_path = ""
    result = recgrad.train(config)
    assert (result.best_step, result.best_metrics, result.metrics) == (None, {}, {})
    assert "best" not in result.describe()


def _at(patch: pytest.MonkeyPatch, name: str, call: int, act: Callable[[], None]) -> None:
    """Do something at the n-th call of a task's method."""
    original: Callable[..., Any] = getattr(Task, name)
    calls = 0

    def method(self: Task, *arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            act()
        original(self, *arguments)

    patch.setattr(Task, name, method)


def test_one_evaluation_is_not_called_the_best(config: PipelineConfig) -> None:
    result = recgrad.train(config)
    assert (result.evaluations, result.best_step) == (1, 20)
    assert "best" not in result.describe()
