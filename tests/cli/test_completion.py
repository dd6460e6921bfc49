"""Completion as real shells do it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from recgrad.cli.command import COMMANDS
from recgrad.cli.completion import read_parser, write_bash, write_fish, write_zsh
from recgrad.cli.list import KINDS
from recgrad.cli.main import build_parser, main

BASH = shutil.which("bash")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "recgrad.bash"
    path.write_text(write_bash(read_parser(build_parser())))
    return path


def complete(script: Path, *words: str, cwd: Path | None = None) -> list[str]:
    """What bash offers for the last of the words that follow `recgrad`."""
    code = 'source "$1"; shift; COMP_WORDS=(recgrad "$@"); COMP_CWORD=$#; _recgrad; '
    code += 'printf "%s\\n" "${COMPREPLY[@]}"'
    assert BASH is not None
    done = subprocess.run(
        [BASH, "--norc", "-c", code, "bash", str(script), *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split("\n")[:-1] if done.stdout.strip() else []


@pytest.mark.skipif(BASH is None, reason="there is no bash")
class TestBash:
    def test_commands(self, script: Path) -> None:
        assert complete(script, "") == list(COMMANDS)
        assert complete(script, "tr") == ["train"]
        assert complete(script, "--v") == ["--version"]

    def test_flags_in_both_spellings(self, script: Path) -> None:
        assert complete(script, "train", "--mo") == ["--model-dir"]
        assert complete(script, "train", "--model_") == ["--model_dir"]
        assert complete(script, "train", "a.config", "--continue") == ["--continue-train"]
        assert "--fine_tune_checkpoint" in complete(script, "train", "--fine_")

    def test_values(self, script: Path) -> None:
        assert complete(script, "eval", "--device", "") == ["auto", "cpu", "cuda"]
        assert complete(script, "eval", "--device", "=", "c") == ["cpu", "cuda"]
        assert complete(script, "eval", "--device", "=") == ["auto", "cpu", "cuda"]
        assert complete(script, "train", "--nproc", "") == []
        assert complete(script, "synth", "--out", "x", "--format", "p") == ["parquet"]

    def test_words_by_place(self, script: Path) -> None:
        assert complete(script, "list", "") == sorted(KINDS)
        assert complete(script, "ckpt", "") == ["list", "show", "diff", "verify"]
        assert complete(script, "ckpt", "diff", "--a") == ["--all"]
        assert complete(script, "completion", "f") == ["fish"]

    def test_files(self, script: Path, tmp_path: Path) -> None:
        (tmp_path / "a b.config").write_text("")
        (tmp_path / "model").mkdir()
        assert sorted(complete(script, "train", "", cwd=tmp_path)) == ["a b.config", "model"]
        assert complete(script, "train", "--model-dir", "mo", cwd=tmp_path) == ["model"]
        assert complete(script, "train", "--model_dir", "mo", cwd=tmp_path) == ["model"]
        assert complete(script, "ckpt", "show", "m", cwd=tmp_path) == ["model"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_every_command_and_flag(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    root = read_parser(build_parser())
    assert set(root.below) == set(COMMANDS)
    for node in root.walk():
        for flag in node.flags:
            for name in flag.names:
                assert (name if shell != "fish" else name.lstrip("-")) in text
    if shutil.which(shell):
        subprocess.run([shell, "-n", "/dev/stdin"], input=text, text=True, check=True)


@pytest.mark.skipif(shutil.which("fish") is None, reason="there is no fish")
def test_fish(tmp_path: Path) -> None:
    (tmp_path / "recgrad.fish").write_text(write_fish(read_parser(build_parser())))

    def offered(line: str) -> list[str]:
        code = f"source {tmp_path}/recgrad.fish; complete -C '{line}'"
        done = subprocess.run(["fish", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
        return [item.partition("\t")[0] for item in done.stdout.splitlines()]

    assert offered("recgrad tr") == ["train"]
    assert offered("recgrad eval --device c") == ["cpu", "cuda"]
    assert "--model-dir" in offered("recgrad train --mo")
    assert offered("recgrad list sched") == ["schedules"]
    assert "verify" in offered("recgrad ckpt ")


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_zsh_defines_the_function(tmp_path: Path) -> None:
    (tmp_path / "recgrad.zsh").write_text(write_zsh(read_parser(build_parser())))
    code = f"compinit() {{ }}; source {tmp_path}/recgrad.zsh; print $+functions[_recgrad]"
    done = subprocess.run(["zsh", "-f", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
