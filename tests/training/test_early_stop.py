"""Early stopping and the best checkpoint, over runs whose settings change between their parts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import recgrad
from recgrad.config import PipelineConfig
from recgrad.training.checkpoint import CheckpointManager
from recgrad.training.hooks.early_stop import Watch, judge

HUGE = 1.0  # no metric below 1 improves by more


@pytest.fixture
def config(config: PipelineConfig) -> PipelineConfig:
    """An evaluation after every second of 12 steps; stops after the third, for none improves."""
    config.train_config.ClearField("num_epochs")
    config.train_config.ClearField("save_checkpoints_epochs")
    config.train_config.num_steps = 12
    config.train_config.save_checkpoints_steps = 2
    config.train_config.early_stopping.metric = "auc"
    config.train_config.early_stopping.patience = 2
    config.train_config.early_stopping.min_delta = HUGE
    return config


def resume_command(config: PipelineConfig) -> recgrad.TrainResult:
    return recgrad.train(config, continue_train=True)


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@given(
    st.lists(st.sampled_from([0.1, 0.2, 0.3, 0.4, float("nan")]), max_size=12), st.sampled_from([0.0, 0.15])
)
def test_the_verdict_is_the_evaluations_since_the_best(values: list[float], min_delta: float) -> None:
    """Told one by one, as the hook once did, and all at once."""
    watch = Watch("auc", min_delta=min_delta)
    best, stale = None, 0
    for number, value in enumerate(values):
        if watch.improves(value, None if best is None else values[best]):
            best, stale = number, 0
        else:
            stale += 1
    assert judge(watch, values) == (best, stale)
    assert stale == len(values) - (0 if best is None else best + 1)


def test_the_same_settings_repeat_the_reason(config: PipelineConfig) -> None:
    first = recgrad.train(config)
    assert first.step == 6
    assert first.stopped.startswith(
        "early stopping: auc has not improved by more than 1 for 2 evaluations (best: 0."
    )
    before = files_of(first.model_dir / "model.ckpt-6")
    again = resume_command(config)
    assert (again.step, again.stopped, again.exit_code) == (6, first.stopped, 0)
    assert files_of(first.model_dir / "model.ckpt-6") == before


def test_more_patience_resumes_as_if_it_had_always_been_there(config: PipelineConfig, tmp_path: Path) -> None:
    stopped = recgrad.train(config)
    assert stopped.stopped
    config.train_config.early_stopping.patience = 4
    continued = resume_command(config)
    assert continued.step == 10
    assert continued.stopped.startswith(
        "early stopping: auc has not improved by more than 1 for 4 evaluations"
    )
    whole = recgrad.train(config, model_dir=tmp_path / "whole")
    assert (whole.step, whole.stopped) == (continued.step, continued.stopped)
    assert files_of(whole.model_dir / "model.ckpt-10") == files_of(continued.model_dir / "model.ckpt-10")


def test_less_patience_ends_a_run_that_resumes(config: PipelineConfig) -> None:
    config.train_config.num_steps = 6
    config.train_config.early_stopping.patience = 5
    assert not recgrad.train(config).stopped
    config.train_config.num_steps = 12
    config.train_config.early_stopping.patience = 1
    result = resume_command(config)
    assert result.step == 6
    assert result.stopped.startswith("early stopping: auc has not improved by more than 1 for 2 evaluations")


def test_without_early_stopping_the_run_resumes(config: PipelineConfig) -> None:
    assert recgrad.train(config).stopped
    config.train_config.ClearField("early_stopping")
    result = resume_command(config)
    assert (result.step, result.stopped) == (12, "")


@pytest.mark.parametrize(("field", "value"), [("min_delta", 1e-9), ("mode", "min")])
def test_evaluations_before_are_judged_by_the_new_settings(
    config: PipelineConfig, field: str, value: object
) -> None:
    """As a run that had these settings from its start."""
    assert recgrad.train(config).step == 6
    setattr(config.train_config.early_stopping, field, value)
    result = resume_command(config)
    lines = (result.model_dir / "train_eval_result.txt").read_text().splitlines()
    aucs = [json.loads(line)["auc"] for line in lines]
    settings = config.train_config.early_stopping
    watch = Watch("auc", settings.mode != "min", settings.min_delta)
    stops = [n for n in range(3, len(aucs) + 1) if judge(watch, aucs[:n])[1] >= 2]
    assert result.step == 2 * (stops[0] if stops else 6)
    assert bool(result.stopped) == bool(stops)


def test_another_metric_begins_anew(config: PipelineConfig) -> None:
    assert recgrad.train(config).step == 6
    config.train_config.early_stopping.metric = "grouped_auc"
    result = resume_command(config)
    assert result.step == 12  # three evaluations of it: one to begin with, two without improvement
    assert result.stopped.startswith(
        "early stopping: grouped_auc has not improved by more than 1 for 2 evaluations"
    )


def test_the_best_by_another_metric_begins_anew(config: PipelineConfig) -> None:
    """Compared with the value of another metric, no later checkpoint would be the best."""
    config.train_config.ClearField("early_stopping")
    config.train_config.num_steps = 4
    config.export_config.exporter_type = "best"
    config.export_config.best_exporter_metric = "grouped_auc"
    recgrad.train(config)
    config.train_config.num_steps = 8
    config.export_config.best_exporter_metric = "auc"
    result = resume_command(config)
    lines = (result.model_dir / "train_eval_result.txt").read_text().splitlines()
    first, _, *later = [json.loads(line) for line in lines]
    assert [line["global_step"] for line in later] == [6, 8]
    assert all(line["auc"] < first["grouped_auc"] for line in later)
    expected = max(later, key=lambda line: line["auc"])["global_step"]
    assert CheckpointManager(result.model_dir).best() == expected
