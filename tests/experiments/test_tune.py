"""`recgrad tune`: spaces, trials that are ordinary runs, resuming, and what it writes."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recgrad.cli.main import main
from recgrad.config import PipelineConfig, edit_config, load_config
from recgrad.config.expand import expand_config
from recgrad.errors import ConfigError, RecgradError
from recgrad.experiments.runs import find_runs
from recgrad.experiments.space import SCHEDULE, Dimension, check_space, default_space, edits_of, load_space
from recgrad.experiments.tune import (
    TuneSettings,
    begin_with_own,
    find_metric,
    open_study,
    resume_killed,
    run_trials,
)
from recgrad.experiments.tune_page import importance, write_page
from recgrad.starting import InitSettings, begin

optuna = pytest.importorskip("optuna")
LR = "train_config.sparse_optimizer.adagrad_optimizer.lr"


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    rng = np.random.default_rng(0)
    user, item = rng.integers(0, 40, 1200), rng.integers(0, 30, 1200)
    click = (rng.random(1200) < np.where(user % 2 == item % 2, 0.7, 0.2)).astype(int)
    pq.write_table(pa.table({"user_id": user, "item_id": item, "click": click}), folder / "log.parquet")
    return begin(InitSettings(str(folder / "log.parquet"), str(folder / "out"))).config


@pytest.fixture(scope="module")
def config(path: Path) -> PipelineConfig:
    return expand_config(load_config(path))


def settings_of(config: PipelineConfig, out: Path, trials: int, **more: Any) -> TuneSettings:
    space = [Dimension(LR, "log", (1e-4, 0.5))]
    return TuneSettings(config, space, out, trials, "auc", True, **more)


def test_the_default_space_fits_the_config(config: PipelineConfig) -> None:
    space = default_space(config)
    check_space(config, space)
    assert {dimension.path.rpartition(".")[2] for dimension in space} == {
        "lr",
        "weight_decay",
        "batch_size",
        "embedding_dim",
        "hidden_units",
        "dropout_ratio",
        "schedule",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a.lr: {log: [0, 1]}", "two rising numbers"),
        ("a.lr: {log: [2, 1]}", "two rising numbers"),
        ("a.lr: {lag: [1, 2]}", "did you mean 'log'?"),
        ("a.lr: 3", "expected one of"),
        ("a.lr: {range: 3}", "needs a list"),
        ("a.lr: {range: [1, 2], step: 2}", "step goes with int"),
        ("- a", "expected paths"),
        ("a: [", "is no YAML"),
    ],
)
def test_spaces_that_make_no_sense(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(text)
    with pytest.raises(RecgradError) as caught:
        load_space(tmp_path / "s.yaml")
    assert message in str(caught.value)


def test_a_space_must_fit_the_config(config: PipelineConfig, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(
        "train_config.sede: {int: [1, 4]}\ndata_config.batch_size: {choices: [x]}\n"
    )
    with pytest.raises(ConfigError) as caught:
        check_space(config, load_space(tmp_path / "s.yaml"))
    assert "sede" in str(caught.value)
    assert "batch_size" in str(caught.value)


def test_several_paths_get_one_value() -> None:
    assert edits_of({"a.b; c.d": 3, "e": "[1, 2]"}) == {"a.b": 3, "c.d": 3, "e": "[1, 2]"}


def test_the_metric_to_go_by(config: PipelineConfig) -> None:
    assert find_metric(config, "") == ("auc", True)
    assert find_metric(config, "grouped_auc") == ("grouped_auc", True)
    with pytest.raises(RecgradError, match="did you mean 'auc'"):
        find_metric(config, "auk")
    with pytest.raises(RecgradError, match="eval_input_path is empty"):
        find_metric(edit_config(config, {"eval_input_path": ""}), "")


def test_a_search_end_to_end(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "s.yaml").write_text(f"{LR}: {{log: [0.0001, 0.5]}}\n")
    command = ["tune", str(path), "--space", str(tmp_path / "s.yaml"), "--out", str(tmp_path / "t")]
    command += ["--num-threads", "1"]
    assert main([*command, "--trials", "3"]) == 0
    printed = capsys.readouterr().out
    runs = find_runs(tmp_path / "t")
    assert [run.folder.name for run in runs] == ["trial-0000", "trial-0001", "trial-0002"]
    best = max(runs, key=lambda run: run.best["auc"])
    written = load_config(tmp_path / "t" / "best.config")
    chosen = written.train_config.sparse_optimizer.adagrad_optimizer.lr
    assert chosen == best.config.train_config.sparse_optimizer.adagrad_optimizer.lr
    assert f"best auc {best.best['auc']:.6f}" in printed
    assert "<svg" in (tmp_path / "t" / "report.html").read_text()
    assert main([*command, "--trials", "4"]) == 0
    assert len(find_runs(tmp_path / "t")) == 4, "the first three count"
    assert main([*command, "--trials", "0"]) == 2


def test_a_killed_trial_goes_on_in_its_folder(config: PipelineConfig, tmp_path: Path) -> None:
    settings = settings_of(config, tmp_path, 1)
    study = open_study(settings)
    trial = study.ask()
    rate = settings.space[0].suggest(trial)
    trial.set_user_attr("folder", "trial-0000")
    trial.set_user_attr("owner", "elsewhere:1")
    assert resume_killed(study) == 0, "another machine's may be at work"
    assert resume_killed(study, alive=lambda owner: False) == 1
    run_trials(study, settings, lambda text: None)
    runs = find_runs(tmp_path)
    assert [run.folder.name for run in runs] == ["trial-0000"]
    assert runs[0].config.train_config.sparse_optimizer.adagrad_optimizer.lr == pytest.approx(rate, rel=1e-6)


def test_trials_that_fall_behind_are_stopped(config: PipelineConfig, tmp_path: Path) -> None:
    often = {"train_config.save_checkpoints_steps": 2, "train_config.num_epochs": 2}
    settings = settings_of(edit_config(config, often), tmp_path, 1)
    study = open_study(settings)
    for number in range(12):  # others, each better than those before it, and all than any AUC
        done = study.ask(
            fixed_distributions={LR: optuna.distributions.FloatDistribution(1e-4, 0.5, log=True)}
        )
        for step in range(1, 9):
            done.report(1.0 + number, step)
            assert not done.should_prune()  # Hyperband notes how far a trial has come as it is asked
        study.tell(done, 1.0)
    said: list[str] = []
    run_trials(study, TuneSettings(**{**vars(settings), "trials": 15}), said.append)
    # Hyperband lets some trials run on, whatever they reach; which, depends on their numbers alone.
    stopped = [run for run in find_runs(tmp_path) if run.state.startswith("stopped by the search")]
    assert len(stopped) == sum("stopped early" in text for text in said) > 0
    assert importance(study).keys() <= {LR}
    assert "trial" in write_page(study, "auc", tmp_path / "r.html").read_text()


@pytest.mark.slow
def test_two_processes_share_a_study(path: Path, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(f"{LR}: {{log: [0.0001, 0.5]}}\n")
    command = [sys.executable, "-m", "recgrad", "tune", str(path), "--space", str(tmp_path / "s.yaml")]
    command += ["--out", str(tmp_path / "t"), "--trials", "4", "--jobs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "hint:" not in done.stdout + done.stderr, "a search leaves the usual ranges on purpose"
    rates = [
        run.config.train_config.sparse_optimizer.adagrad_optimizer.lr for run in find_runs(tmp_path / "t")
    ]
    assert len(rates) == len(set(rates)) == 4


def test_the_first_trial_takes_the_config_as_it_is(config: PipelineConfig, tmp_path: Path) -> None:
    space = default_space(config)
    study = open_study(TuneSettings(config, space, tmp_path / "t", 1, "auc", True))
    begin_with_own(study, space)
    begin_with_own(study, space)
    assert len(study.get_trials()) == 1, "once in a study"
    trial = study.ask()
    chosen = {dimension.path: dimension.suggest(trial) for dimension in space}
    edits = edits_of(chosen)
    decay = "train_config.dense_optimizer.adam_optimizer.weight_decay"
    assert edits.pop(decay) == 1e-8, "the least that a logarithmic scale has; the config has none"
    dropouts = {path: edits.pop(path) for path in list(edits) if path.endswith("dropout_ratio")}
    assert dropouts
    assert set(dropouts.values()) == {"[0.0]"}, "written where the config leaves it out"
    assert edit_config(config, edits) == config


@pytest.mark.slow
def test_several_processes_refuse_a_config_once(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "recgrad", "tune", str(path), "--metric", "auk", "--jobs", "3"]
    done = subprocess.run(
        [*command, "--out", str(tmp_path / "t")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert (done.stdout + done.stderr).count("did you mean 'auc'") == 1
    assert not list(tmp_path.glob("t/trial-*"))


def test_what_a_trial_tries_depends_on_its_number_and_not_on_the_process(
    config: PipelineConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os

    tried = []
    for process in (11, 12):
        monkeypatch.setattr(os, "getpid", lambda process=process: process)
        study = open_study(settings_of(config, tmp_path / str(process), 4, seed=3))
        for number in range(14):  # the first ten are drawn freely, the others by what was found
            trial = study.ask()
            lr = trial.suggest_float("lr", 0.0, 1.0)
            study.tell(trial, (lr - 0.3) ** 2 + number * 1e-3)
        tried.append([trial.params["lr"] for trial in study.trials])
    assert tried[0] == tried[1]
    assert len(set(tried[0])) == 14
    other = open_study(settings_of(config, tmp_path / "other", 4, seed=4))
    assert other.ask().suggest_float("lr", 0.0, 1.0) != tried[0][0]


def test_schedules_of_the_default_space_end_with_the_run(config: PipelineConfig) -> None:
    (dimension,) = [one for one in default_space(config) if one.path == SCHEDULE]
    as_it_is, root, line = dimension.values
    assert edits_of({SCHEDULE: as_it_is}) == {}
    rooted = edit_config(config, edits_of({SCHEDULE: root}))
    assert rooted.train_config.dense_optimizer.HasField("inverse_sqrt_learning_rate")
    rows = int(line.split()[-2])
    assert 0.8 * 1200 * config.train_config.num_epochs < rows < 1200 * config.train_config.num_epochs
    for batch in (64, 128):
        edits = edits_of({SCHEDULE: line, "data_config.batch_size": batch})
        edited = edit_config(config, edits).train_config
        for half in (edited.sparse_optimizer, edited.dense_optimizer):
            assert half.linear_decay_learning_rate.decay_size == -(-rows // batch)
    steps = PipelineConfig()
    steps.CopyFrom(config)
    steps.train_config.ClearField("num_epochs")
    steps.train_config.num_steps = 50
    (dimension,) = [one for one in default_space(steps) if one.path == SCHEDULE]
    edited = edit_config(steps, edits_of({SCHEDULE: dimension.values[-1], "data_config.batch_size": 7}))
    assert edited.train_config.dense_optimizer.linear_decay_learning_rate.decay_size == 50


def test_a_study_may_be_in_a_database(config: PipelineConfig, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/study.db"
    settings = settings_of(config, tmp_path / "out", 2, storage=url)
    run_trials(open_study(settings), settings, lambda _: None)
    assert len(open_study(settings).trials) == 2
    assert not (tmp_path / "out/study.journal").exists()
    with pytest.raises(RecgradError, match="--storage"):
        open_study(settings_of(config, tmp_path / "out", 2, storage="nosuch://here"))


@pytest.mark.slow
def test_processes_share_a_study_in_postgresql(config: PipelineConfig, tmp_path: Path) -> None:
    pgserver = pytest.importorskip("pgserver")
    pytest.importorskip("psycopg")
    # Not below pytest's folder, which each start of pytest closes to other users, such as PostgreSQL's.
    place = Path(tempfile.mkdtemp(prefix="recgrad-postgres-"))
    server = pgserver.get_server(place / "data", cleanup_mode="stop")
    try:
        settings = settings_of(config, tmp_path / "out", 2, storage=server.get_uri())
        study = open_study(settings)
        trial = study.ask()
        trial.suggest_float(LR, 1e-4, 0.5, log=True)
        study.tell(trial, 0.5)
        again = open_study(settings)
        run_trials(again, settings, lambda _: None)
        assert [one.number for one in study.trials] == [0, 1]
        assert find_runs(tmp_path / "out")
    finally:
        server.cleanup()
        shutil.rmtree(place, ignore_errors=True)
