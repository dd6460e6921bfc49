"""A signal in an evaluation is answered at once, and the continued run ends as if it had not come."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import recgrad
from recgrad.config import PipelineConfig
from recgrad.training import evaluator
from recgrad.training.checkpoint import CheckpointManager, read_checkpoint
from recgrad.training.task import Task

EVALUATIONS = "train_eval_result.txt"
BATCHES = 10


class CrashError(Exception):
    """Stands for the process that is gone."""


@pytest.fixture
def config(config: PipelineConfig) -> PipelineConfig:
    """12 steps with an evaluation of ten batches after each fourth."""
    config.data_config.eval_batch_size = 100
    config.train_config.ClearField("num_epochs")
    config.train_config.ClearField("save_checkpoints_epochs")
    config.train_config.num_steps = 12
    config.train_config.save_checkpoints_steps = 4
    return config


def by_epochs(config: PipelineConfig) -> None:
    config.train_config.ClearField("num_steps")
    config.train_config.ClearField("save_checkpoints_steps")
    config.train_config.num_epochs = 2
    config.train_config.save_checkpoints_epochs = 1


def signal_at(monkeypatch: pytest.MonkeyPatch, batch: int, number: int = signal.SIGTERM) -> list[int]:
    """Sends a signal while the n-th batch is evaluated; returns the numbers of those that were."""
    original, seen = Task.update_metrics, []

    def update(self: Task, *arguments: Any) -> None:
        seen.append(len(seen) + 1)
        if len(seen) == batch:
            os.kill(os.getpid(), number)
        original(self, *arguments)

    monkeypatch.setattr(Task, "update_metrics", update)
    return seen


def steps_evaluated(folder: Path) -> list[int]:
    return [json.loads(line)["global_step"] for line in (folder / EVALUATIONS).read_text().splitlines()]


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def assert_same_end(one: Path, other: Path) -> None:
    assert (one / EVALUATIONS).read_text() == (other / EVALUATIONS).read_text()
    steps = CheckpointManager(one).steps()
    assert steps == CheckpointManager(other).steps()
    assert CheckpointManager(one).best() == CheckpointManager(other).best()
    a, b = files_of(one / f"model.ckpt-{steps[-1]}"), files_of(other / f"model.ckpt-{steps[-1]}")
    assert a.keys() == b.keys()
    assert [name for name in a if a[name] != b[name]] == []


def train_whole_and_cut(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> tuple[int, list[int]]:
    """A run that was not disturbed in `whole`, and one in `cut`; the step where that one was cut."""
    recgrad.train(config, model_dir=tmp_path / "whole")
    with monkeypatch.context() as patch:
        seen = signal_at(patch, batch)
        stopped = recgrad.train(config, model_dir=tmp_path / "cut")
    assert stopped.exit_code == 143
    assert seen[-1] == batch  # at once: no batch after the one in which it came
    assert read_checkpoint(tmp_path / f"cut/model.ckpt-{stopped.step}").tree["state"]["evaluation_due"]
    assert steps_evaluated(tmp_path / "cut") == steps_evaluated(tmp_path / "whole")[: (batch - 1) // BATCHES]
    return stopped.step, seen


@pytest.mark.parametrize(("batch", "step"), [(3, 4), (13, 8), (30, 12)])
def test_after_a_step(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int, step: int
) -> None:
    stopped, _ = train_whole_and_cut(config, tmp_path, monkeypatch, batch)
    assert stopped == step
    result = recgrad.train(config, model_dir=tmp_path / "cut", continue_train=True)
    assert (result.step, result.exit_code) == (12, 0)
    assert_same_end(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("batch", [4, 15])
def test_after_an_epoch(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    by_epochs(config)
    train_whole_and_cut(config, tmp_path, monkeypatch, batch)
    recgrad.train(config, model_dir=tmp_path / "cut", continue_train=True)
    assert_same_end(tmp_path / "whole", tmp_path / "cut")


def test_at_the_end(config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.train_config.save_checkpoints_steps = 100
    step, _ = train_whole_and_cut(config, tmp_path, monkeypatch, 5)
    assert step == 12
    recgrad.train(config, model_dir=tmp_path / "cut", continue_train=True)
    assert_same_end(tmp_path / "whole", tmp_path / "cut")


def test_when_an_accumulation_is_cut_by_the_end_of_an_epoch(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.train_config.gradient_accumulation_steps = 5  # 16 batches: the fourth update has one
    train_whole_and_cut(config, tmp_path, monkeypatch, 3)
    recgrad.train(config, model_dir=tmp_path / "cut", continue_train=True)
    assert_same_end(tmp_path / "whole", tmp_path / "cut")


def test_what_listens_to_evaluations_hears_each_once(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Early stopping, the best checkpoint and a plateau schedule, whose first verdict was cut."""
    config.train_config.num_steps = 40
    config.train_config.early_stopping.metric = "auc"
    config.train_config.early_stopping.patience = 2
    config.train_config.early_stopping.min_delta = 1.0
    config.export_config.exporter_type = "best"
    config.export_config.best_exporter_metric = "auc"
    plateau = config.train_config.dense_optimizer.reduce_on_plateau_learning_rate
    plateau.metric, plateau.patience, plateau.factor = "auc", 0, 0.5
    plateau.threshold = 1.0
    for batch in (2, 12, 22):
        folder = tmp_path / str(batch)
        train_whole_and_cut(config, folder, monkeypatch, batch)
        result = recgrad.train(config, model_dir=folder / "cut", continue_train=True)
        assert result.step == 12
        assert result.stopped.startswith("early stopping: auc")
        assert_same_end(folder / "whole", folder / "cut")


def test_a_second_run_that_is_cut_too(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_whole_and_cut(config, tmp_path, monkeypatch, 3)
    with monkeypatch.context() as patch:
        seen = signal_at(patch, 6, signal.SIGINT)
        again = recgrad.train(config, model_dir=tmp_path / "cut", continue_train=True)
    assert (again.step, again.exit_code, seen[-1]) == (4, 130, 6)
    assert again.metrics == {}
    assert "stopped in the evaluation of step 4; resume with: recgrad train" in again.hint
    recgrad.train(config, model_dir=tmp_path / "cut", continue_train=True)
    assert_same_end(tmp_path / "whole", tmp_path / "cut")


def test_a_crash_between_the_late_evaluation_and_its_save_writes_no_line_twice(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train_whole_and_cut(config, tmp_path, monkeypatch, 3)

    def crash(*_: Any) -> None:
        raise CrashError

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointManager, "save", crash)
        with pytest.raises(CrashError):
            recgrad.train(config, model_dir=tmp_path / "cut", continue_train=True)
    assert steps_evaluated(tmp_path / "cut") == [4]
    recgrad.train(config, model_dir=tmp_path / "cut", continue_train=True)
    assert_same_end(tmp_path / "whole", tmp_path / "cut")
    events = [json.loads(line) for line in (tmp_path / "cut/events.jsonl").read_text().splitlines()]
    assert [event["step"] for event in events if event["kind"] == "eval"] == [4, 8, 12]


def test_a_signal_before_the_evaluation_begins(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It came in the step; whoever sent it does not wait for the evaluation that follows."""
    recgrad.train(config, model_dir=tmp_path / "whole")
    with monkeypatch.context() as patch:
        signal_in_step(patch, 4)
        seen = signal_at(patch, 1_000)
        stopped = recgrad.train(config, model_dir=tmp_path / "cut")
    assert (stopped.step, stopped.exit_code, seen) == (4, 143, [])
    recgrad.train(config, model_dir=tmp_path / "cut", continue_train=True)
    assert_same_end(tmp_path / "whole", tmp_path / "cut")


def signal_in_step(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    original: Callable[..., Any] = Task.update_train_metrics
    calls = 0

    def update(self: Task, *arguments: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == step:
            signal.raise_signal(signal.SIGTERM)
        original(self, *arguments)

    monkeypatch.setattr(Task, "update_train_metrics", update)


def with_averaged_weights(config: PipelineConfig) -> None:
    config.train_config.dense_optimizer.schedule_free_adamw_optimizer.lr = 0.01
    config.model_config.deepfm.deep.use_bn = True


def test_averaged_weights_are_put_back(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_averaged_weights(config)
    train_whole_and_cut(config, tmp_path, monkeypatch, 13)
    recgrad.train(config, model_dir=tmp_path / "cut", continue_train=True)
    assert_same_end(tmp_path / "whole", tmp_path / "cut")


def test_while_batch_norm_is_estimated(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The save that follows gathers the statistics of the step itself."""
    with_averaged_weights(config)
    recgrad.train(config, model_dir=tmp_path / "whole")
    original, passes = Task.forward, 0

    def forward(self: Task, *arguments: Any) -> Any:
        nonlocal passes
        passes += not torch.is_grad_enabled()
        if passes == 5:
            signal.raise_signal(signal.SIGTERM)
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Task, "forward", forward)
        stopped = recgrad.train(config, model_dir=tmp_path / "cut")
    assert (stopped.step, stopped.exit_code) == (4, 143)
    assert passes == 5 + 16  # an epoch has 16 batches, less than are looked at
    recgrad.train(config, model_dir=tmp_path / "cut", continue_train=True)
    assert_same_end(tmp_path / "whole", tmp_path / "cut")


def test_batch_norm_is_estimated_once_a_step(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluation and the save of a step see the same statistics."""
    with_averaged_weights(config)
    original, estimates = evaluator._run_some_batches, 0

    def run_some_batches(*arguments: Any) -> None:
        nonlocal estimates
        estimates += 1
        original(*arguments)

    monkeypatch.setattr(evaluator, "_run_some_batches", run_some_batches)
    recgrad.train(config, model_dir=tmp_path)
    assert estimates == 3
