"""How a run of several processes ended, from what each of them left behind."""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from recgrad.cli.command import EXIT_USER_ERROR
from recgrad.training.signals import HANDLED

if TYPE_CHECKING:
    from recgrad.training.processes.board import Beat, Failure

EXIT_FAILED = 1
SIGNALLED = 128
POLITE = frozenset({0, *(SIGNALLED + number for number in HANDLED)})
"""Exit codes of ranks that have done their work, or stopped as they were asked."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The exit code of the run, what remains to be said, and whether another start may help."""

    code: int
    message: str = ""
    restart: bool = False


def judge(
    codes: Sequence[int],
    *,
    stopped_by: int = 0,
    killed_here: Collection[int] = (),
    failure: Failure | None = None,
    beats: Sequence[Beat | None] = (),
) -> Outcome:
    """What the exit codes of the ranks mean together.

    A rank that failed by itself has said so on the terminal. One that was killed cannot, so
    that is said here, with what it was doing.

    Args:
        stopped_by: the signal that the run was asked to stop with, or 0.
        killed_here: ranks that the launcher killed, which says nothing of them.
        failure: what the first rank to notice has said.
        beats: the last signs of life.
    """
    if not any(codes):
        return Outcome(0)
    own_fault = failure is not None and failure.kind in ("error", "crash", "late")
    if stopped_by and not own_fault:
        if codes[0] in POLITE:  # it has said how to resume
            return Outcome(SIGNALLED + stopped_by)
        return Outcome(SIGNALLED + stopped_by, "stopped at once", restart=True)
    if POLITE.issuperset(codes):
        return Outcome(max(codes))
    if failure is not None and own_fault:
        if failure.kind == "error":
            return Outcome(EXIT_USER_ERROR)
        return Outcome(EXIT_USER_ERROR if failure.kind == "late" else EXIT_FAILED, restart=not stopped_by)
    killed = [rank for rank, code in enumerate(codes) if code < 0 and rank not in killed_here]
    if killed:
        return Outcome(EXIT_FAILED, _killed(killed[0], -codes[killed[0]], beats), restart=True)
    if failure is not None and failure.kind == "gone":
        ended = [rank for rank, code in enumerate(codes) if code > 0 and code != EXIT_USER_ERROR]
        text = _ended(ended[0], codes[ended[0]], beats) if ended else failure.message
        return Outcome(EXIT_FAILED, text, restart=True)
    # It ended before it could say why on the board, and has said it on the terminal.
    rank = next(rank for rank, code in enumerate(codes) if code > 0 and code not in POLITE)
    if codes[rank] == EXIT_USER_ERROR:
        return Outcome(EXIT_USER_ERROR)
    return Outcome(EXIT_FAILED, _ended(rank, codes[rank], beats), restart=True)


def _killed(rank: int, number: int, beats: Sequence[Beat | None]) -> str:
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    memory = " (memory may have run out)" if number == signal.SIGKILL else ""
    return f"rank {rank} was killed by {name}{memory} {_while(rank, beats)}"


def _ended(rank: int, code: int, beats: Sequence[Beat | None]) -> str:
    return f"rank {rank} ended with exit code {code} {_while(rank, beats)}"


def _while(rank: int, beats: Sequence[Beat | None]) -> str:
    beat = beats[rank] if rank < len(beats) else None
    return "before it began" if beat is None else f"while at '{beat.doing}'"
