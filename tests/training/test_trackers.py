"""Trackers: a run is told to MLflow and Weights & Biases, and none of their failures ends it."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import recgrad
from recgrad.check import check_config
from recgrad.check.training import TRACKER_NAMES
from recgrad.cli.main import main
from recgrad.config import PipelineConfig, load_config
from recgrad.errors import RecgradError
from recgrad.starting import InitSettings, begin
from recgrad.training.hooks import tracking
from recgrad.training.hooks.trackers import TRACKERS
from recgrad.training.hooks.trackers.base import Tracker


@pytest.fixture
def config(tmp_path: Path) -> PipelineConfig:
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 40, 1500), rng.integers(0, 30, 1500)
    click = (rng.random(1500) < np.where(user % 2 == item % 2, 0.7, 0.2)).astype(int)
    pq.write_table(pa.table({"user_id": user, "item_id": item, "click": click}), tmp_path / "log.parquet")
    config = load_config(begin(InitSettings(str(tmp_path / "log.parquet"), str(tmp_path / "out"))).config)
    config.model_dir = str(tmp_path / "model")
    config.train_config.num_epochs = 1
    config.train_config.save_checkpoints_steps = 4
    config.train_config.log_step_count_steps = 2
    return config


class Told(Tracker):
    """Keeps what it is told."""

    extra = "told"
    runs: dict[str, dict] = {}  # noqa: RUF012
    fails = ""
    waits: threading.Event | None = None

    @classmethod
    def check_installed(cls) -> None:
        if cls.fails == "import":
            raise ImportError("told")

    def open(self, run_id: str, params: Mapping[str, str]) -> str:
        if self.waits is not None:
            self.waits.wait()
        self.run_id = run_id or f"run {len(self.runs)}"
        new = {"params": dict(params), "metrics": [], "files": [], "ends": []}
        self.run = self.runs.setdefault(self.run_id, new)
        return self.run_id

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        if self.fails == "log":
            raise OSError("the server is gone")
        self.run["metrics"].append((step, dict(metrics)))

    def attach(self, path: Path) -> None:
        self.run["files"].append(path.name)

    def close(self, *, finished: bool) -> None:
        self.run["ends"].append(finished)


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> type[Told]:
    monkeypatch.setattr(tracking, "TRACKERS", {"mlflow": Told})
    monkeypatch.setattr(Told, "runs", {})
    return Told


def test_a_run_tells_settings_numbers_and_files_and_goes_on_in_the_same_run(
    config: PipelineConfig, told: type[Told]
) -> None:
    config.train_config.trackers.append("mlflow:here")
    recgrad.train(config)
    (run,) = told.runs.values()
    assert run["params"]["data_config.batch_size"] == str(config.data_config.batch_size)
    assert not any("feature_configs" in name for name in run["params"])
    steps = [step for step, values in run["metrics"] if "eval/auc" in values]
    assert steps[0] == 4
    assert any("lr/dense" in values and "train/total" in values for _, values in run["metrics"])
    assert run["files"][0] == "pipeline.config"
    assert run["ends"] == [True]
    config.train_config.num_epochs = 2
    recgrad.train(config, continue_train=True)
    assert len(told.runs) == 1
    assert max(step for step, _ in run["metrics"]) > max(steps)
    assert json.loads((Path(config.model_dir) / "trackers.json").read_text()) == {"mlflow:here": "run 0"}
    assert main(["report", config.model_dir]) == 0
    assert run["files"][-1] == "report.html"


def test_a_tracker_that_fails_is_left_alone_with_one_word(
    config: PipelineConfig,
    told: type[Told],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(Told, "fails", "log")
    config.train_config.trackers.append("mlflow")
    with caplog.at_level(logging.WARNING, "recgrad.training"):
        assert recgrad.train(config).metrics
    said = [record.getMessage() for record in caplog.records if "tracker" in record.getMessage()]
    assert len(said) == 1
    assert "the server is gone" in said[0]


def test_a_tracker_that_hangs_is_not_waited_for(
    config: PipelineConfig,
    told: type[Told],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    hold = threading.Event()
    monkeypatch.setattr(Told, "waits", hold)
    one = tracking.Tracking("mlflow", Path(config.model_dir), {}, close_secs=0.05)
    monkeypatch.setattr(tracking, "open_trackers", lambda *_: [one])
    monkeypatch.setattr("recgrad.training.assembly.open_trackers", lambda *_: [one])
    with caplog.at_level(logging.WARNING, "recgrad.training"):
        assert recgrad.train(config).metrics
    hold.set()
    assert "did not answer" in caplog.text


def test_what_is_not_installed_or_unknown_is_refused_before_training(
    config: PipelineConfig, told: type[Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert set(TRACKER_NAMES) == set(TRACKERS)
    monkeypatch.setattr(Told, "fails", "import")
    config.train_config.trackers.append("mlflow")
    with pytest.raises(RecgradError, match=r"recgrad\[told\]"):
        recgrad.train(config)
    config.train_config.trackers[:] = ["mlfow", "wandb", "wandb"]
    problems = [str(problem) for problem in check_config(config).problems]
    assert any("did you mean 'mlflow'" in problem for problem in problems)
    assert any("twice" in problem for problem in problems)


@pytest.mark.slow
def test_mlflow_has_the_run_in_its_database(config: PipelineConfig, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from mlflow.tracking import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    MlflowClient(uri).create_experiment("clicks", artifact_location=(tmp_path / "files").as_uri())
    path = tmp_path / "own.config"
    recgrad.save_config(config, path)
    assert main(["train", str(path), "--track", f"mlflow:{uri}#clicks"]) == 0
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name("clicks")
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["data_config.batch_size"] == str(config.data_config.batch_size)
    history = client.get_metric_history(run.info.run_id, "eval/auc")
    assert history[0].step == 4
    lines = (Path(config.model_dir) / "train_eval_result.txt").read_text().splitlines()
    assert history[-1].value == pytest.approx(json.loads(lines[-1])["auc"])
    files = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert {"pipeline.config", "train_eval_result.txt"} <= files
    edits = '{"train_config.num_epochs": 2}'
    line = ["train", str(path), "--continue_train", "--edit_config_json", edits]
    assert main([*line, "--track", f"mlflow:{uri}#clicks"]) == 0
    (again,) = client.search_runs([experiment.experiment_id])
    assert again.info.run_id == run.info.run_id
    assert len(client.get_metric_history(run.info.run_id, "eval/auc")) > len(history)


@pytest.mark.slow
def test_wandb_keeps_the_run_offline(
    config: PipelineConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    config.train_config.trackers.append("wandb:clicks")
    with caplog.at_level(logging.WARNING, "recgrad.training"):
        recgrad.train(config)
    assert "tracker" not in caplog.text
    (folder,) = (Path(config.model_dir) / "wandb").glob("offline-run-*")
    (stored,) = folder.glob("*.wandb")
    run_id = json.loads((Path(config.model_dir) / "trackers.json").read_text())["wandb:clicks"]
    assert stored.name == f"run-{run_id}.wandb"
    content = stored.read_bytes()
    assert b"eval/auc" in content
    assert b"data_config.batch_size" in content
    assert (folder / "files/pipeline.config").exists()
