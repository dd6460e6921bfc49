"""What is printed holds nothing that a terminal would obey, whatever names others chose."""

from __future__ import annotations

import ast
import io
import logging
import sys
import unicodedata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import recgrad
from recgrad.cli.main import PlainLine, main
from recgrad.errors import ConfigError, Problem, RecgradError
from recgrad.registry import UnknownNameError
from recgrad.terminal import printable, say
from recgrad.training.hooks.console import PlainLines, ProgressBar

EVIL = "a\x1b[31m\x1b]0;title\x07\r\x9b2J\u202eb\udce9"
SHOWN = r"a\x1b[31m\x1b]0;title\x07\r\x9b2J\u202eb\udce9"


@given(st.text(st.characters()))
def test_text_is_left_alone_but_for_what_a_terminal_obeys(text: str) -> None:
    shown = printable(text)
    assert not [c for c in shown if unicodedata.category(c) in ("Cc", "Cs", "Zl", "Zp") and c not in "\n\t"]
    assert printable(shown) == shown
    assert "".join(printable(c) for c in text) == shown
    for c in text:
        assert printable(c) in (c, ascii(c)[1:-1])
        if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            assert printable(c) == c


def test_words_of_every_language_are_shown_as_they_are() -> None:
    text = "prénom Größe 価格\u3000特徴 цена سعر η×√2 … ✓\tx\n"
    assert printable(text) == text


def test_streams_of_any_encoding_take_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    say(f"价 {EVIL}")
    assert stream.buffer.getvalue() == f"\\u4ef7 {SHOWN}\n".encode()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "error",
    [RecgradError(EVIL), ConfigError([Problem(EVIL, "is wrong")]), UnknownNameError(EVIL)],
    ids=["plain", "config", "name"],
)
def test_errors_are_printable(error: RecgradError) -> None:
    assert str(error).startswith(SHOWN)


def test_only_one_place_prints() -> None:
    """Everything that is printed goes through `say`, and so through `printable`."""
    package = Path(recgrad.__file__).parent
    for path in package.rglob("*.py"):
        if path.name == "terminal.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            bare = isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
            assert not bare, f"{path.relative_to(package)}:{node.lineno}: use recgrad.terminal.say"


def test_names_of_a_config_and_of_files_are_printable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = tmp_path / "\x1b[31m.config"
    evil.write_text('feature_configs { id_feature { feature_name: "a\\033[31m\\233b" } }')
    assert main(["check", str(evil)]) == 2
    assert main(["check", str(tmp_path / "\x1b[32m.config")]) == 2
    assert main(["ckpt", "list", str(tmp_path / "\x1b[33m")]) == 2
    shown = capsys.readouterr()
    assert r"\x1b[31m.config" in shown.err
    assert r"\x1b[32m.config" in shown.err
    assert r"\x1b[33m" in shown.err
    assert "\x1b" not in shown.out + shown.err


def test_arguments_are_printable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", "a.config", f"--{EVIL}"])
    assert SHOWN in capsys.readouterr().err


def test_logs_and_progress_are_printable(capsys: pytest.CaptureFixture[str]) -> None:
    record = logging.LogRecord("recgrad", logging.INFO, "", 0, "skipped %s", (EVIL,), None)
    PlainLine().emit(record)
    trainer: Any = SimpleNamespace(state=SimpleNamespace(step=3, stopped=EVIL))
    PlainLines().evaluation(trainer, {EVIL: 0.5})
    PlainLines().end(trainer)
    assert capsys.readouterr().err == f"skipped {SHOWN}\nstep 3  evaluation: {SHOWN} 0.500000\n{SHOWN}\n"
    console = Console(file=io.StringIO(), width=200)
    bar = ProgressBar(console)
    with console.capture() as captured:
        bar.evaluation(trainer, {EVIL: 0.5})
    assert SHOWN in captured.get()
    assert "\x1b" not in captured.get()
