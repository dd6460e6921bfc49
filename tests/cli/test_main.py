"""The command line: both spellings, exit codes, errors without tracebacks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

from recgrad.check.capabilities import HOMES, REGISTRIES, available, custom_names
from recgrad.cli.command import COMMANDS
from recgrad.cli.list import KINDS, describe_component, list_kind, list_names
from recgrad.cli.main import main, with_dashes
from recgrad.registry_text import written_components


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "recgrad", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_flags_may_be_spelled_with_underscores_and_values_are_left_alone() -> None:
    typed = ["train", "--model_dir=a_b", "--edit_config_json", '{"a_b.c_d": 1}', "--", "--x_y"]
    assert with_dashes(typed) == [
        "train",
        "--model-dir=a_b",
        "--edit-config-json",
        '{"a_b.c_d": 1}',
        "--",
        "--x_y",
    ]


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_explains_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    shown = capsys.readouterr().out
    summary = (COMMANDS[name].__doc__ or "").strip().partition("\n")[0]
    assert summary
    assert summary in shown
    assert "--debug" in shown


def test_the_promised_commands_are_there() -> None:
    promised = {"train", "eval", "predict", "check", "list", "synth", "quickstart"}
    assert promised <= set(COMMANDS)


def test_an_unknown_command_ends_with_2() -> None:
    done = run("trian")
    assert done.returncode == 2
    assert "invalid choice: 'trian'" in done.stderr


def test_a_missing_config_is_one_line_and_2() -> None:
    done = run("check", "nowhere.config")
    assert done.returncode == 2
    assert "nowhere.config" in done.stderr
    assert "Traceback" not in done.stderr


def test_debug_shows_the_traceback() -> None:
    assert "Traceback" in run("check", "nowhere.config", "--debug").stderr


def test_naming_two_configs_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "a.config", "--pipeline_config_path", "b.config"]) == 2
    assert "name one config file, got 2" in capsys.readouterr().err


def test_synth_check_and_list_work_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["synth", "--rows", "2000", "--eval_rows", "500", "--out", str(tmp_path)]) == 0
    assert "best reachable AUC" in capsys.readouterr().out
    assert main(["check", str(tmp_path / "deepfm.config"), "--data"]) == 0
    assert "no problems found" in capsys.readouterr().out
    edit = json.dumps({"train_config.num_steps": 5, "data_config.batch_size": 0})
    assert main(["check", str(tmp_path / "deepfm.config"), "--edit-config-json", edit]) == 2
    problems = capsys.readouterr().err
    assert "num_steps and num_epochs are both set" in problems
    assert "batch_size" in problems


@pytest.mark.parametrize("kind", ["optimizers", "schedules", "losses", "metrics", "models", "features"])
def test_list_shows_every_kind(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", kind]) == 0
    assert f"{kind} (" in capsys.readouterr().out


def test_list_without_a_kind_lists_the_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert max(map(len, shown)) <= 80
    counts = {line.split()[0]: int(line.split()[1]) for line in shown[: len(KINDS)]}
    assert set(counts) == set(KINDS)
    assert main(["list", "metrics"]) == 0
    assert f"metrics ({counts['metrics']})" in capsys.readouterr().out


@pytest.mark.parametrize("kind", KINDS)
def test_lists_fit_a_narrow_terminal(
    kind: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recgrad.cli.console.PIPE_WIDTH", 80)
    assert main(["list", kind]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(cell_len, lines)) <= 80
    # Nothing is cut into columns of a few letters.
    assert len(lines) < 12 * len([line for line in lines if line and not line.startswith(" ")])


def test_list_of_an_unknown_name_suggests_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "optimizers", "adan_optimizer"]) == 2
    assert "did you mean 'adam_optimizer'" in capsys.readouterr().err


def test_synth_into_a_file_is_one_line_and_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "taken").write_text("")
    assert main(["synth", "--rows", "10", "--out", str(tmp_path / "taken")]) == 2
    assert "taken" in capsys.readouterr().err


def test_schedule_counts_the_rows_where_the_config_says_epochs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["synth", "--rows", "5000", "--eval_rows", "500", "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert main(["schedule", str(tmp_path / "deepfm.config")]) == 0
    shown = capsys.readouterr().out
    assert "sparse (LinearDecay)" in shown
    # 5000 rows in batches of 1024 are 5 updates: the last starts after 4.
    assert any(line.split() and line.split()[-1] == "4" for line in shown.splitlines())


@pytest.mark.parametrize(
    ("kind", "name"), [("losses", "custom_loss"), ("metrics", "custom_metric"), ("models", "custom_model")]
)
def test_list_shows_the_place_of_ones_own(kind: str, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", kind, name]) == 0
    shown = capsys.readouterr().out
    assert "import path" in shown
    assert "class_path" in shown


@pytest.mark.parametrize("name", ["sgd_optimizer", "adagrad_optimizer", "adam_optimizer", "adamw_optimizer"])
def test_a_fused_kernel_that_nothing_is_said_of_is_taken(name: str) -> None:
    (listed,) = [entry for entry in list_kind("dense_optimizer") if entry.name == name]
    assert "fused=True" in listed.parameters


@pytest.mark.parametrize("kind", HOMES)
def test_what_is_read_from_the_files_is_what_the_classes_say(kind: str) -> None:
    of_classes = [describe_component(kind, name, found) for name, found in REGISTRIES[kind].items()]
    listed = list(list_kind(kind))
    assert listed[: len(of_classes)] == of_classes
    assert [entry.name for entry in listed[len(of_classes) :]] == [
        name for name in custom_names(kind) if name not in REGISTRIES[kind]
    ]
    assert list_names(kind) == available()[kind]
    home = HOMES[kind]
    assert written_components(home.package, home.variable), "it was imported after all"
