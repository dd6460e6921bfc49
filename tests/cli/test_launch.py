"""What the launcher says of a rank that cannot say anything any more."""

from __future__ import annotations

import io
import os
import sys

import pytest

from recgrad.cli import launch as launcher
from recgrad.cli.launch import launch
from recgrad.cli.outcome import Outcome

DIES = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
CAUSE = "rank 0 was killed by SIGKILL (memory may have run out) before it began; resume with: this\n"


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
    assert launch(DIES, 1, resume_command="this") == 1
    assert screen.getvalue() == before + CAUSE


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_a_restart_has_the_cores_of_the_first_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """The launcher loads torch while ranks run; with OMP_PROC_BIND that binds it to one core."""
    before = os.sched_getaffinity(0)
    seen: list[set[int]] = []

    class Start:
        def __init__(self, *_: object) -> None:
            seen.append(os.sched_getaffinity(0))
            os.sched_setaffinity(0, {min(before)})

        def send(self, number: int) -> None:
            """Nobody is there."""

        def watch(self, signals: object) -> Outcome:
            return Outcome(1, restart=True)

    monkeypatch.setattr(launcher, "_Start", Start)
    try:
        assert launch(DIES, 1, max_restarts=2) == 1
    finally:
        os.sched_setaffinity(0, before)
    assert seen == [before] * 3
