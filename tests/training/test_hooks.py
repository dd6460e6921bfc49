"""Hooks: what a run shows, keeps and stops for."""

from __future__ import annotations

import io
import json
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

import recgrad
from recgrad.check.training import SUMMARIES
from recgrad.config import PipelineConfig
from recgrad.errors import ConfigError, RecgradError
from recgrad.training.hook import StepReport
from recgrad.training.hooks import console
from recgrad.training.hooks.early_stop import Watch
from recgrad.training.hooks.events import _open_after
from recgrad.training.hooks.log import LogRecord
from recgrad.training.hooks.tensorboard import TensorBoard
from recgrad.training.state import TrainState
from recgrad.training.trainer import Trainer


@pytest.mark.parametrize(
    ("watch", "value", "best", "improves"),
    [
        (Watch("auc"), 0.6, None, True),
        (Watch("auc"), 0.6, 0.5, True),
        (Watch("auc"), 0.5, 0.5, False),
        (Watch("auc", min_delta=0.2), 0.6, 0.5, False),
        (Watch("loss", larger_is_better=False), 0.4, 0.5, True),
        (Watch("loss", larger_is_better=False), 0.6, 0.5, False),
        (Watch("auc"), float("nan"), None, False),
    ],
)
def test_what_counts_as_an_improvement(
    watch: Watch, value: float, best: float | None, improves: bool
) -> None:
    assert watch.improves(value, best) is improves


def test_an_unknown_metric_names_the_nearest_and_the_known() -> None:
    watch = Watch("auc_ctrr", where="train_config.early_stopping.metric")
    with pytest.raises(
        RecgradError,
        match=r"^train_config.early_stopping.metric: no evaluation metric 'auc_ctrr'; "
        r"did you mean 'auc_ctr'\? \(evaluated: auc_ctr, auc_cvr",
    ):
        watch.value({"auc_ctr": 0.5, "auc_cvr": 0.5})


def test_unknown_summaries_are_refused(config: PipelineConfig) -> None:
    config.train_config.use_tensorboard = True
    config.train_config.tensorboard_summaries.append("los")
    with pytest.raises(ConfigError, match="no summary 'los'; did you mean 'loss'"):
        recgrad.train(config)


def test_tensorboard_holds_every_summary(config: PipelineConfig) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config.train_config.use_tensorboard = True
    config.train_config.tensorboard_summaries.extend(SUMMARIES)
    result = recgrad.train(config)
    events = EventAccumulator(str(result.model_dir / "train"))
    events.Reload()
    scalars, histograms = set(events.Tags()["scalars"]), set(events.Tags()["histograms"])
    assert {"loss/total", "lr/dense", "lr/sparse", "metric/auc", "global_gradient_norm"} <= scalars
    assert {"memory_gb/resident", "memory_gb/tables", "cpu_share"} <= scalars
    assert any(name.startswith("gradient_norm/") for name in scalars)
    assert any(name.startswith("parameter/") for name in histograms)
    assert any(name.startswith("gradient/") for name in histograms)
    evaluation = EventAccumulator(str(result.model_dir / "eval_val"))
    evaluation.Reload()
    (value,) = evaluation.Scalars("metric/auc")
    assert value.value == pytest.approx(result.metrics["auc"], rel=1e-6)
    assert value.step == result.step


def record_of(step: int) -> LogRecord:
    return LogRecord(step, 0, {"total": 0.5}, {}, {}, None, 1.0, 0.0, step, 0)


def at(step: int, *, evaluation_due: bool = False) -> Trainer:
    """As much of a trainer as TensorBoard looks at."""
    state = TrainState(step=step, evaluation_due=evaluation_due)
    return cast("Trainer", SimpleNamespace(state=state))


def test_the_first_step_does_not_wait_for_tensorboard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # an import of it raises
    sink = TensorBoard(tmp_path)
    sink.start(at(0))
    sink.step(at(1), StepReport(1, {}, {}, None, 1, 0.0, 0.0))
    with pytest.raises(ImportError):
        sink.record(at(1), record_of(1))


@pytest.mark.parametrize("evaluation_due", [False, True])
@pytest.mark.parametrize("resumes", [False, True])
def test_tensorboard_forgets_what_came_after_the_checkpoint(
    tmp_path: Path, resumes: bool, evaluation_due: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.summary.writer import event_file_writer

    # Files are read in the order of the seconds in their names; these two runs would share one.
    clock = count(1_000_000_000)
    monkeypatch.setattr(event_file_writer, "time", SimpleNamespace(time=lambda: float(next(clock))))
    killed = TensorBoard(tmp_path)
    killed.start(at(0))
    for step in (2, 4, 6):
        killed.record(at(step), record_of(step))
        killed.evaluation(at(step), {"auc": 0.5})
    killed.close()
    resumed = TensorBoard(tmp_path)
    resumed.start(at(4, evaluation_due=evaluation_due))
    if resumes:
        resumed.record(at(5), record_of(5))
        resumed.evaluation(at(5), {"auc": 0.5})
    resumed.end(at(5))
    resumed.close()
    found = []
    for folder, tag in (("train", "loss/total"), ("eval_val", "metric/auc")):
        events = EventAccumulator(str(tmp_path / folder))
        events.Reload()
        found.append([event.step for event in events.Scalars(tag)])
    later = [5] if resumes else []
    assert found == [[2, 4, *later], [2, *([] if evaluation_due else [4]), *later]]


def test_profiling_writes_a_trace(config: PipelineConfig) -> None:
    config.train_config.is_profiling = True
    config.data_config.batch_size = 128
    result = recgrad.train(config)
    (trace,) = (result.model_dir / "profile").glob("*.json*")
    assert json.loads(trace.read_text())["traceEvents"]


def test_profiling_a_run_that_is_too_short_says_so(
    config: PipelineConfig, caplog: pytest.LogCaptureFixture
) -> None:
    config.train_config.is_profiling = True
    config.train_config.ClearField("num_epochs")
    config.train_config.num_steps = 2
    recgrad.train(config)
    assert "too short for a trace" in caplog.text


def test_lines_after_the_checkpoint_and_torn_ones_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_text('{"step": 1}\n{"step": 5}\n{"step": 9}\n{"ste')
    _open_after(path, lambda event: event["step"] <= 5).close()
    assert path.read_text() == '{"step": 1}\n{"step": 5}\n'


def test_lines_say_losses_rates_metrics_and_speed(
    config: PipelineConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    recgrad.train(config)
    first = capsys.readouterr().err.splitlines()[0]
    for part in ("step 5", "binary_cross_entropy", "auc", "lr[dense]", "samples/s", "data wait"):
        assert part in first


def test_the_bar_shows_step_total_and_evaluation(
    config: PipelineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = io.StringIO()
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setenv("COLUMNS", "250")
    monkeypatch.setattr(
        "recgrad.training.assembly.build_console_sink",
        lambda *_: console.build_console_sink(is_terminal=True),
    )
    result = recgrad.train(config)
    text = shown.getvalue()
    assert f"{result.step}/{result.step}" in text
    assert "lr[dense]" in text
    assert "evaluation: auc" in text
