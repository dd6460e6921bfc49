"""What a report says in words, from the events of a run."""

from __future__ import annotations

import time
from typing import Any

import pytest

from recgrad.config import PipelineConfig
from recgrad.report.summary import facts, overfitting, span, told

BEGIN = 1_763_300_000.0  # 2025-11-16 13:33 UTC


def record(step: int, loss: float) -> dict[str, Any]:
    return {"kind": "train", "step": step, "time": BEGIN + step, "losses": {"total": loss}}


def evaluation(step: int, best: int | None = None, **metrics: float | None) -> dict[str, Any]:
    event = {"kind": "eval", "step": step, "time": BEGIN + step, "metrics": metrics}
    return event if best is None else {**event, "best": {"metric": "auc", "step": best}}


def start(seconds: float, **run: int) -> dict[str, Any]:
    return {"kind": "start", "step": 0, "time": BEGIN + seconds, "run": run}


def config() -> PipelineConfig:
    message = PipelineConfig(train_input_path="train.parquet", eval_input_path="eval.parquet")
    message.model_config.deepfm.SetInParent()
    return message


SIZE = {"dense_weights": 1234, "tables": 2, "table_rows": 5000, "table_values": 40_000}


def test_the_facts_of_a_run() -> None:
    events = [start(0, train_rows=6000, **SIZE), record(100, 0.5), record(150, 0.4)]
    assert dict(facts(config(), events)) == {
        "date": "2025-11-16 13:33 to 13:35 UTC",
        "duration": "2 min 30 s",
        "trained on": "train.parquet, 6,000 rows",
        "evaluated on": "eval.parquet",
        "model": "deepfm, 1,234 dense weights, 40,000 values in 2 tables of 5,000 rows",
    }


def test_a_run_in_parts_lasted_as_long_as_its_parts() -> None:
    events = [start(0), record(50, 0.5), start(86_400), record(86_430, 0.4)]
    told_facts = dict(
        facts(config(), [*events, {"kind": "end", "time": BEGIN + 86_440, "stopped": "enough"}])
    )
    assert told_facts["date"] == "2025-11-16 13:33 to 2025-11-17 13:34 UTC"
    assert told_facts["duration"] == "1 min 30 s, in 2 parts"
    assert told_facts["ended"] == "enough"


def test_the_time_is_the_same_wherever_the_report_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    assert dict(facts(config(), [start(0)]))["date"] == "2025-11-16 13:33 UTC"
    monkeypatch.undo()
    time.tzset()


def test_a_log_of_an_older_version_tells_what_it_has() -> None:
    old = {"kind": "start", "step": 0, "time": BEGIN}
    assert dict(facts(config(), [old]))["model"] == "deepfm"
    assert dict(facts(config(), [])).keys() == {"trained on", "evaluated on", "model"}
    found = told([evaluation(5, auc=0.7)])
    assert found is not None
    assert found.best is None
    assert told([]) is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (3599, "59 min 59 s"), (7320, "2 h 2 min")],
)
def test_spans(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_the_best_is_the_one_that_the_log_names() -> None:
    found = told([evaluation(5, 5, auc=0.8), evaluation(10, 5, auc=0.7)])
    assert found is not None
    assert found.best is not None
    assert (found.best["step"], found.last["step"], found.decided_by) == (5, 10, "auc")


FALLING = [record(step, 1.0 - step / 100) for step in range(10, 90, 10)]


def test_a_loss_that_rises_while_the_training_loss_falls_gets_a_word() -> None:
    evaluations = [evaluation(s, log_loss=v) for s, v in ((20, 0.5), (40, 0.45), (80, 0.6))]
    assert list(overfitting(FALLING, evaluations)) == [
        "log_loss of the evaluation rose from 0.45000 (step 40, its best) to 0.60000 (step 80) "
        "while the training loss fell from 0.70000 to 0.30000"
    ]


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("log_loss_ctr", (0.5, 0.45, 0.6), True),
        ("auc", (0.7, 0.8, 0.75), True),
        ("recall@5", (0.1, 0.3, 0.2), True),
        ("log_loss", (0.6, 0.5, 0.4), False),
        ("log_loss", (0.5, 0.45, 0.4501), False),
        ("log_loss", (0.5, None, 0.6), True),
        ("ratio_calibration", (1.0, 1.5, 2.0), False),
        ("Lift", (2.0, 1.5, 1.0), False),
    ],
)
def test_which_metrics_tell_of_overfitting(name: str, values: tuple[float | None, ...], said: bool) -> None:
    evaluations = [evaluation(20 * i + 20, **{name: value}) for i, value in enumerate(values)]
    assert bool(list(overfitting(FALLING, evaluations))) == said


def test_a_training_loss_that_rises_too_is_another_trouble() -> None:
    rising = [record(step, step / 100) for step in range(10, 90, 10)]
    evaluations = [evaluation(20, log_loss=0.4), evaluation(80, log_loss=0.6)]
    assert list(overfitting(rising, evaluations)) == []
    assert list(overfitting([], evaluations)) == []
