"""Which rank is to blame when a collective fails, and what to say of it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence

import torch.distributed as dist

from recgrad.errors import LostRankError
from recgrad.training.processes.board import Beat, Board, Failure, known
from recgrad.training.processes.heartbeat import MANY_EVERY_SECS, is_gone

# Long enough for a living process to give its next sign of life, were it busy for a while.
SILENCE_SECS = 3 * MANY_EVERY_SECS
LOOK_SECS = 0.1
# What gloo says in a plain RuntimeError; everything else raises a DistError.
TIMED_OUT = re.compile(
    r"timed out waiting \d+ms for|wait timeout|timeout caused pair closure|socket timeout|connect timeout",
    re.I,
)
# The last one is said of a rank that has told its address, and died while they met.
CLOSED = re.compile(r"closed by peer|reset by peer|broken pipe|timed out connecting", re.I)


def comes_from_a_peer(error: BaseException) -> bool:
    """Whether an error, or what it came of, is that of a collective or a save left alone by another rank."""
    return any(
        isinstance(one, (dist.DistError, LostRankError))
        or (isinstance(one, RuntimeError) and (TIMED_OUT.search(str(one)) or CLOSED.search(str(one))))
        for one in _chain(error)
    )


def find_cause(board: Board, own: Beat, error: BaseException, timeout_secs: float) -> Failure:
    """Why a collective of this rank failed: what another rank says, or which one is gone or late.

    Processes of this machine are looked up; of those of another one, signs of life are awaited.
    """
    timed_out = any(isinstance(one, LostRankError) or TIMED_OUT.search(str(one)) for one in _chain(error))
    before = board.beats()
    deadline = time.monotonic() + SILENCE_SECS
    while True:
        said = board.failure()
        if said is not None:
            return said
        gone = [beat for beat in known(before) if beat.rank != own.rank and is_gone(beat)]
        if gone or time.monotonic() >= deadline:
            break
        if timed_out and all(beat is not None and is_gone(beat) is False for beat in before):
            break  # all are alive, on this machine; after a closed connection one may be about to end
        time.sleep(LOOK_SECS)
    after = board.beats()
    now = time.time()
    silent = gone or _silent(before, after, own.rank)
    if silent:
        return Failure(own.rank, own.host, "gone", describe_gone(silent[0], own, now))
    if not timed_out:
        text = f"rank {own.rank} lost its connection to another rank at '{own.doing}': {first_line(error)}"
        return Failure(own.rank, own.host, "gone", text)
    return Failure(own.rank, own.host, "late", describe_late(after, own, timeout_secs, now))


def describe_gone(beat: Beat, own: Beat, now: float) -> str:
    """That a rank has ended, when it was last seen, and where."""
    ago = max(now - beat.at, 0.0)
    return (
        f"rank {beat.rank} is gone (last seen {ago:.0f} s ago at '{beat.doing}'); "
        f"rank {own.rank} was at '{own.doing}'"
    )


def describe_late(beats: Sequence[Beat | None], own: Beat, timeout_secs: float, now: float) -> str:
    """Which rank the others waited for, and what it did instead."""
    here = f"rank {own.rank} waited for it at '{own.doing}'"
    unseen = [rank for rank, beat in enumerate(beats) if beat is None]
    if unseen:
        return f"{_ranks(unseen)} did not come within {timeout_secs:g} s, nor show at all; {here}"
    busy = [beat for beat in known(beats) if beat.rank != own.rank and not beat.waiting]
    if not busy:
        # Each waits for another: some rank has left a collective out. The one furthest behind did.
        busy = [beat for beat in known(beats) if beat.rank != own.rank and beat.moves < own.moves]
    if not busy:
        others = [beat for beat in known(beats) if beat.rank != own.rank]
        places = ", ".join(f"rank {beat.rank} at '{beat.doing}' ({beat.where})" for beat in others)
        return f"the ranks waited {timeout_secs:g} s for each other: {here}, {places}"
    last = min(busy, key=lambda beat: (beat.moves, beat.since))
    quiet = now - last.at
    unheard = f", not heard of for {quiet:.0f} s" if quiet > SILENCE_SECS else ""
    return (
        f"rank {last.rank} did not come within {timeout_secs:g} s: it has been at '{last.doing}' "
        f"for {max(now - last.since, 0.0):.0f} s ({last.where}{unheard}); {here}"
    )


def _silent(before: Sequence[Beat | None], after: Sequence[Beat | None], own: int) -> list[Beat]:
    """Ranks of other machines that have given no sign of life in between."""
    return [
        beat
        for earlier, beat in zip(before, after)
        if beat is not None
        and earlier is not None
        and beat.rank != own
        and is_gone(beat) is None
        and beat.number == earlier.number
    ]


def first_line(error: BaseException) -> str:
    """What an error says, in one line."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _ranks(ranks: Sequence[int]) -> str:
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        seen = seen.__cause__ or seen.__context__
