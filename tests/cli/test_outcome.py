"""What the exit codes of ranks mean together."""

from __future__ import annotations

import signal

import pytest

from recgrad.cli.outcome import Outcome, judge
from recgrad.training.processes.board import Beat, Failure

AT = Beat(1, "here", 1, 1, 1, 0.0, "step 12: backward", 0.0, 1, False, "")


def failure(kind: str, rank: int = 0) -> Failure:
    return Failure(rank, "here", kind, f"what rank {rank} says")


@pytest.mark.parametrize(
    ("codes", "stopped_by", "said", "code"),
    [
        ([0, 0], 0, None, 0),
        ([0, 0], signal.SIGTERM, None, 0),
        ([143, 143], signal.SIGTERM, None, 143),
        ([130, 130], signal.SIGINT, None, 130),
        # The signal reached a rank alone, and the ranks stopped together.
        ([0, 143], 0, None, 143),
        # An error while stopping is an error.
        ([2, 2], signal.SIGTERM, "error", 2),
        ([2, 2], 0, "error", 2),
        # Before there was a board to write on.
        ([2, 2], 0, None, 2),
    ],
)
def test_ends_that_need_no_word_and_no_restart(
    codes: list[int], stopped_by: int, said: str | None, code: int
) -> None:
    told = None if said is None else failure(said)
    assert judge(codes, stopped_by=stopped_by, failure=told) == Outcome(code)


@pytest.mark.parametrize(
    ("codes", "said"),
    [
        ([2, -15], "gone"),  # a rank had not come to where signals are taken
        ([-15, -15], None),
        ([-9, -9], None),  # a second signal
    ],
)
def test_a_run_that_had_no_time_to_say_how_to_resume(codes: list[int], said: str | None) -> None:
    told = None if said is None else failure(said)
    outcome = judge(codes, stopped_by=signal.SIGTERM, killed_here={0, 1}, failure=told)
    assert outcome == Outcome(143, "stopped at once", restart=True)


def test_a_killed_rank_is_named_with_what_it_did() -> None:
    outcome = judge([2, -9, 2], failure=failure("gone"), beats=[None, AT, None])
    assert outcome.code == 1
    assert outcome.restart
    assert outcome.message.startswith("rank 1 was killed by SIGKILL")
    assert outcome.message.endswith("while at 'step 12: backward'")


def test_a_rank_killed_before_it_began() -> None:
    assert (
        judge([-11, 2], failure=failure("gone", 1)).message == "rank 0 was killed by SIGSEGV before it began"
    )


def test_a_rank_that_the_launcher_killed_is_not_to_blame() -> None:
    outcome = judge([1, -9], killed_here={1}, failure=failure("crash"))
    assert outcome == Outcome(1, restart=True)


def test_a_rank_that_left_without_a_word_is_named() -> None:
    outcome = judge([2, 7], failure=failure("gone"), beats=[None, AT])
    assert outcome == Outcome(1, "rank 1 ended with exit code 7 while at 'step 12: backward'", restart=True)


def test_a_late_rank_has_been_reported_and_another_start_may_help() -> None:
    assert judge([2, 2], failure=failure("late")) == Outcome(2, restart=True)
