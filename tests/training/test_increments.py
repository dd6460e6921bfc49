"""Days of training, each from where the last one ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import recgrad
from recgrad.cli.main import main
from recgrad.config import PipelineConfig, save_config
from recgrad.embedding.deltas.record import published, read_record
from recgrad.errors import RecgradError
from recgrad.report.page import write_report
from recgrad.training import increments
from recgrad.training.checkpoint import read_checkpoint
from recgrad.training.hook import Hook, StepReport
from recgrad.training.increments import read_lineage, train_days, train_increment
from recgrad.training.trainer import Trainer


@pytest.fixture
def days(clicks: Path, tmp_path: Path) -> Path:
    """Three days of data."""
    folder = tmp_path / "days"
    folder.mkdir()
    rows = pq.read_table(clicks / "train.parquet")
    for i in range(3):
        pq.write_table(rows.slice(1200 * i, 1200), folder / f"2026110{i}.parquet")
    return folder


@pytest.fixture
def daily(config: PipelineConfig) -> PipelineConfig:
    """A config with tables whose rows belong to ids; five steps a day."""
    for i, feature in enumerate(f.id_feature for f in config.feature_configs if f.HasField("id_feature")):
        if i < 3:
            feature.ClearField("num_buckets")
            feature.dynamicemb.max_capacity = 500
    return config


def test_days_go_on_from_each_other(daily: PipelineConfig, days: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    result = train_days(daily, days=str(days / "*.parquet"), model_dir=model)
    lineage = read_lineage(model / "20261102")
    assert [day.day for day in lineage] == ["20261100", "20261101", "20261102"]
    assert not lineage[0].before
    for day, parent in zip(lineage[1:], lineage, strict=False):
        assert day.parent_step == parent.step
        # What the parent is worth on data that it has not seen, computed again by another way.
        folder = model / parent.day
        again = recgrad.evaluate(folder / "pipeline.config", eval_input_path=day.data)
        assert dict(day.before) == pytest.approx(again)
    assert dict(lineage[-1].after) == dict(result.metrics)
    # Rows of the first day that later days have not touched are as they were, with their states.
    first, last = (
        read_checkpoint(model / day.day / f"model.ckpt-{day.step}") for day in (lineage[0], lineage[-1])
    )
    tables = {table.name: table for table in last.tables}
    kept = [np.isin(table.row_ids, tables[table.name].row_ids).mean() for table in first.tables]
    assert np.mean(kept) > 0.5


def test_a_day_is_the_same_as_fine_tuning_by_hand(daily: PipelineConfig, days: Path, tmp_path: Path) -> None:
    first, second = (str(days / f"2026110{i}.parquet") for i in range(2))
    recgrad.train(daily, train_input_path=first, model_dir=tmp_path / "one")
    train_increment(daily, parent=tmp_path / "one", data=second, model_dir=tmp_path / "two")
    by_hand = recgrad.train(
        daily,
        train_input_path=second,
        model_dir=tmp_path / "hand",
        fine_tune_checkpoint=str(tmp_path / "one"),
    )
    own, other = (read_checkpoint(tmp_path / name / f"model.ckpt-{by_hand.step}") for name in ("two", "hand"))
    for a, b in zip(own.tables, other.tables, strict=True):
        assert a.row_ids.tobytes() == b.row_ids.tobytes()
        assert a.weights.tobytes() == b.weights.tobytes()


def test_a_run_over_days_resumes_in_the_middle(
    daily: PipelineConfig, days: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pattern = str(days / "*.parquet")
    train_days(daily, days=pattern, model_dir=tmp_path / "whole")
    trained: list[str] = []
    original = increments.train

    def stopping(config: Any, **arguments: Any) -> Any:
        trained.append(Path(arguments["model_dir"]).name)
        if len(trained) == 2:
            raise KeyboardInterrupt
        return original(config, **arguments)

    monkeypatch.setattr(increments, "train", stopping)
    with pytest.raises(KeyboardInterrupt):
        train_days(daily, days=pattern, model_dir=tmp_path / "parts")
    train_days(daily, days=pattern, model_dir=tmp_path / "parts")
    assert trained == ["20261100", "20261101", "20261101", "20261102"]
    ends = [read_lineage(tmp_path / name / "20261102") for name in ("whole", "parts")]
    assert [dict(day.after) for day in ends[0]] == [dict(day.after) for day in ends[1]]
    train_days(daily, days=pattern, model_dir=tmp_path / "parts")  # nothing is left to do
    assert len(trained) == 4


class Power(Hook):
    """Fails in a step."""

    def after_step(self, trainer: Trainer, report: StepReport) -> None:
        if report.step == 3:
            raise KeyboardInterrupt


def test_a_day_that_ended_before_its_first_checkpoint_begins_anew(
    daily: PipelineConfig, days: Path, tmp_path: Path
) -> None:
    daily.train_config.log_step_count_steps = 1
    daily.train_config.delta_embedding_dump_config.dump_interval_steps = 1
    pattern = str(days / "2026110[01].parquet")
    train_days(daily, days=pattern, model_dir=tmp_path / "whole")
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            train_days(daily, days=pattern, model_dir=tmp_path / "parts", hooks=[Power()])
    train_days(daily, days=pattern, model_dir=tmp_path / "parts")
    for day in ("20261100", "20261101"):
        own, other = (read_lineage(tmp_path / name / day)[-1] for name in ("whole", "parts"))
        assert (own.after, own.before, own.step) == (other.after, other.before, other.step)
        folder = tmp_path / "parts" / day / "delta_embedding_dump"
        assert len({read_record(path).stream for path in published(folder).values()}) == 1
        assert sorted(published(folder)) == list(range(1, own.step + 1))


def test_the_command_and_the_report(daily: PipelineConfig, days: Path, tmp_path: Path, capsys: Any) -> None:
    save_config(daily, tmp_path / "daily.config")
    flags = ["--model_dir", str(tmp_path / "model"), "--days", str(days / "2026110[01].parquet")]
    assert main(["train", str(tmp_path / "daily.config"), *flags]) == 0
    third = ["--increment_from", str(tmp_path / "model" / "20261101"), "--model_dir", str(tmp_path / "third")]
    third += ["--train_input_path", str(days / "20261102.parquet")]
    assert main(["train", str(tmp_path / "daily.config"), *third]) == 0
    lineage = json.loads((tmp_path / "third" / "lineage.json").read_text())
    assert [entry["day"] for entry in lineage] == ["20261100", "20261101", "20261102"]
    page = write_report(tmp_path / "third").read_text()
    assert "before training on the day" in page
    assert "20261101" in page


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--days", "nowhere/*"], "no file or folder has such a name"),
        (["--days", "x", "--train_input_path", "y"], "leave one out"),
        (["--days", "x", "--continue_train"], "resume by themselves"),
        (["--increment_from", "x", "--fine_tune_checkpoint", "y"], "leave one out"),
    ],
)
def test_flags_that_do_not_go_together(
    daily: PipelineConfig, tmp_path: Path, flags: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_config(daily, tmp_path / "daily.config")
    assert main(["train", str(tmp_path / "daily.config"), *flags]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.slow
def test_days_of_two_processes_each(daily: PipelineConfig, days: Path, tmp_path: Path) -> None:
    pytest.importorskip("torchrec", exc_type=(ImportError, OSError))
    save_config(daily, tmp_path / "daily.config")
    flags = ["--days", str(days / "2026110[01].parquet"), "--model_dir", str(tmp_path / "model")]
    for _ in range(2):  # what is trained is passed over
        assert main(["train", str(tmp_path / "daily.config"), *flags, "--nproc", "2"]) == 0
    lineage = read_lineage(tmp_path / "model" / "20261101")
    assert [day.day for day in lineage] == ["20261100", "20261101"]
    assert all(day.step and day.after for day in lineage)
    assert lineage[1].before
    last = read_checkpoint(tmp_path / "model" / "20261101" / f"model.ckpt-{lineage[1].step}")
    assert len(last.computed_on) == 2


class Torchrun:
    """`torchrun … recgrad train` of two processes of this machine."""

    def __init__(self, config: Path, *flags: str) -> None:
        line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        line += ["-m", "recgrad", "train", str(config), *flags]
        self._out = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed in wait()
        self.process = subprocess.Popen(
            line, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=self._out, stderr=subprocess.STDOUT
        )
        self.said = ""

    def wait(self) -> int:
        """The exit code, once it has ended."""
        try:
            return self.process.wait(300)
        finally:
            self.process.kill()
            self.process.wait()
            self._out.seek(0)
            self.said = self._out.read()
            self._out.close()


def ends_of(model: Path) -> dict[str, Any]:
    """All bits of the last checkpoint of each day, and what the lineage says but for places."""
    found: dict[str, Any] = {}
    for folder in sorted(path.parent for path in model.glob("*/lineage.json")):
        day = read_lineage(folder)[-1]
        files = sorted((folder / f"model.ckpt-{day.step}").rglob("*"))
        bits = {path.name: path.read_bytes() for path in files if path.suffix not in (".json", "")}
        assert bits
        found[folder.name] = (day.before, day.after, day.step, day.parent_step, bits)
    return found


@pytest.mark.slow
def test_torchrun_trains_on_days_as_nproc_does_and_resumes(
    daily: PipelineConfig, days: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torchrec", exc_type=(ImportError, OSError))
    daily.train_config.log_step_count_steps, daily.data_config.batch_size = 1, 16
    config = tmp_path / "daily.config"
    save_config(daily, config)
    flags = ["--days", str(days / "2026110[01].parquet"), "--model_dir"]
    assert main(["train", str(config), *flags, str(tmp_path / "one"), "--nproc", "2"]) == 0
    expected = ends_of(tmp_path / "one")
    assert list(expected) == ["20261100", "20261101"]

    run = Torchrun(config, *flags, str(tmp_path / "two"))
    events, deadline = tmp_path / "two" / "20261101" / "events.jsonl", time.monotonic() + 200
    while not (events.exists() and '"kind": "train"' in events.read_text()):
        assert run.process.poll() is None, run.wait() or run.said
        assert time.monotonic() < deadline
        time.sleep(0.01)
    run.process.send_signal(signal.SIGTERM)
    assert run.wait() != 0, run.said
    assert "of 20261101; the same command resumes" in run.said
    assert not read_lineage(tmp_path / "two" / "20261101")[-1].step
    run = Torchrun(config, *flags, str(tmp_path / "two"))
    assert run.wait() == 0, run.said
    assert "20261100: trained already" in run.said
    assert ends_of(tmp_path / "two") == expected

    again = ["--increment_from", str(tmp_path / "two" / "20261100"), "--model_dir", str(tmp_path / "again")]
    run = Torchrun(config, *again, "--train_input_path", str(days / "20261101.parquet"))
    assert run.wait() == 0, run.said
    assert ends_of(tmp_path)["again"] == expected["20261101"]


@pytest.mark.slow
def test_torchrun_says_once_what_is_wrong_with_days(daily: PipelineConfig, tmp_path: Path) -> None:
    save_config(daily, tmp_path / "daily.config")
    run = Torchrun(tmp_path / "daily.config", "--days", "nowhere/*", "--model_dir", str(tmp_path / "model"))
    assert run.wait() == 1, run.said
    assert run.said.count("--days 'nowhere/*': no file or folder has such a name") == 1
    assert "increments.py" not in run.said  # no traceback of ours; torchrun has its own
    assert not (tmp_path / "model").exists()


def test_a_day_needs_a_folder_of_its_own(daily: PipelineConfig, days: Path, tmp_path: Path) -> None:
    data = str(days / "20261100.parquet")
    recgrad.train(daily, train_input_path=data, model_dir=tmp_path / "one")
    with pytest.raises(RecgradError, match="a model_dir of its own"):
        train_increment(daily, parent=tmp_path / "one", data=data, model_dir=tmp_path / "one")
    with pytest.raises(RecgradError, match="is not made by increments"):
        train_increment(daily, parent=tmp_path / "two", data=data, model_dir=tmp_path / "one")
