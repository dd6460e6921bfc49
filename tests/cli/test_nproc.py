"""The flags of several processes: which go together, and what each process gets of them."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("flags", "variables", "problem"),
    [
        (["--nproc", "0"], {}, "--nproc: must be at least 1, got 0"),
        (["--nproc", "2", "--max-restarts", "-1"], {}, "--max-restarts: must be at least 0, got -1"),
        (["--max-restarts", "2"], {}, "--max-restarts 2 needs --nproc; torchrun has its own"),
        (["--nproc", "2"], {"WORLD_SIZE": "4"}, "--nproc 2 starts the processes, but WORLD_SIZE=4"),
    ],
)
def test_flags_of_processes_that_do_not_fit_are_refused(
    flags: list[str],
    variables: dict[str, str],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from recgrad.cli.main import main

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "some.config", *flags]) == 2
    assert capsys.readouterr().err.startswith(problem)


def test_each_process_gets_the_line_without_the_flags_of_the_launcher() -> None:
    from recgrad.cli.main import build_parser
    from recgrad.cli.train import command_line

    line = [
        "train",
        "a b.config",
        "--model-dir",
        "m",
        "--continue-train",
        "--nproc",
        "2",
        "--num-threads",
        "3",
    ]
    parser = build_parser()
    given = parser.parse_args([*line, "--max-restarts", "1", "--edit-config-json", '{"a": 1}'])
    again = parser.parse_args(command_line(given))
    expected = {**vars(given), "nproc": None, "max_restarts": None}
    assert vars(again) == expected
