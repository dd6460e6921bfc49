"""What the launcher says of a rank that cannot say anything any more."""

from __future__ import annotations

import io
import sys

import pytest

from recgrad.cli.launch import launch

DIES = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
CAUSE = "rank 0 was killed by SIGKILL (memory may have run out) before it began; go on with: this\n"


class Screen(io.StringIO):
    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(("terminal", "before"), [(False, ""), (True, "\x1b[?25h\n")])
def test_the_cause_has_a_line_of_its_own(
    monkeypatch: pytest.MonkeyPatch, terminal: bool, before: str
) -> None:
    """A progress bar dies with its process: it leaves the cursor hidden, at the end of the bar."""
    screen = Screen(terminal)
    monkeypatch.setattr(sys, "stderr", screen)
    assert launch(DIES, 1, go_on="this") == 1
    assert screen.getvalue() == before + CAUSE
