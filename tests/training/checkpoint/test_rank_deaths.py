"""Processes that are killed, or end, while they write a checkpoint together."""

from __future__ import annotations

import functools
import os
import random
import signal
import time
import traceback
from pathlib import Path

import pytest

from recgrad.errors import CheckpointError
from recgrad.training.checkpoint import CheckpointManager, Snapshot
from recgrad.training.checkpoint import ranks as ranks_module


def hidden(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.startswith("."))


def in_child(work) -> int:
    """Run in a forked process; its id."""
    process = os.fork()
    if process:
        return process
    try:
        work()
        os._exit(0)
    except CheckpointError:
        os._exit(3)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


@pytest.mark.parametrize("done", [False, True], ids=["before its record", "after its record"])
def test_a_rank_that_dies(tmp_path, cut, monkeypatch, done):
    first, second = cut.managers(tmp_path, 2, timeout_secs=1.0 if not done else 30.0)
    write_record = ranks_module._write_record

    def die(*arguments):
        if done:
            write_record(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)

    def save():
        ranks_module._write_record = die
        second.save(Snapshot(1, {}, cut.filled(1, 1, 2)), block=True)

    process = in_child(save)
    first.save(Snapshot(1, {"n": 1}, cut.filled(1, 0, 2)))
    assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == -signal.SIGKILL
    if done:
        first.wait()
        assert cut.check_whole(first.path(1), 2) == 1
        assert hidden(tmp_path) == []
    else:
        with pytest.raises(CheckpointError, match=r"rank 1: not done within 1 s, may have died"):
            first.wait()
        assert first.steps() == []
        cut.save_together(
            cut.managers(tmp_path, 2, token="b"), 1, {"n": 1}, [cut.filled(1, r, 2) for r in range(2)]
        )
        assert os.listdir(tmp_path) == ["model.ckpt-1"]


@pytest.mark.parametrize("ending", [0, 1])
def test_a_process_that_ends_waits_for_nobody(tmp_path, cut, ending):
    group = cut.managers(tmp_path, 3)
    for rank in (0, 1):
        group[rank].save(Snapshot(1, {"n": 1}, cut.filled(1, rank, 3)))
    time.sleep(0.1)
    group[ending].give_up()
    with pytest.raises(CheckpointError, match=f"rank {ending}: the run has ended there"):
        group[ending].wait()
    if ending == 0:
        with pytest.raises(CheckpointError, match="rank 0: the run has ended there"):
            group[1].wait()
    else:
        group[2].save(Snapshot(1, {}, cut.filled(1, 2, 3)), block=True)
        group[0].wait()
        assert cut.check_whole(group[0].path(1), 3) == 1


ROWS = 4_000


def save_forever(cut, folder: Path, rank: int, token: str, first: int) -> None:
    manager = CheckpointManager(folder, keep_max=3, rank=rank, world_size=3, token=token, timeout_secs=3)
    for step in range(first, first + 10_000):
        manager.save(Snapshot(step, {"n": step} if rank == 0 else {}, cut.filled(step, rank, 3, ROWS)))


def wait_for_a_save_after(step: int, manager: CheckpointManager) -> None:
    deadline = time.monotonic() + 60
    while not any(saved > step for saved in manager.steps()):
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.slow
def test_one_of_three_processes_is_killed_at_any_moment(tmp_path, cut):
    """What has a name is whole, the others end with an error, and the next run goes on."""
    rng = random.Random(0)
    newest, torn = 0, 0
    for attempt in range(10):
        token = f"start-{attempt}"
        processes = [
            in_child(functools.partial(save_forever, cut, tmp_path, rank, token, newest + 1))
            for rank in range(3)
        ]
        if attempt % 2:  # these die after a save at least, the others at any moment
            wait_for_a_save_after(newest, CheckpointManager(tmp_path))
        time.sleep(rng.uniform(0.05, 0.3))
        victim = processes[attempt % 3]
        os.kill(victim, signal.SIGKILL)
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
        assert [codes[rank] for rank in range(3) if rank != attempt % 3] == [3, 3]
        assert codes[attempt % 3] == -signal.SIGKILL
        torn += bool(hidden(tmp_path))
        manager = CheckpointManager(tmp_path)
        for step in manager.steps():
            assert cut.check_whole(manager.path(step), 3, ROWS) == step
        newest = manager.steps()[-1] if manager.steps() else 0
    assert newest >= 5
    assert torn > 5
    group = [CheckpointManager(tmp_path, rank=rank, world_size=3, token="last") for rank in range(3)]
    for rank, manager in enumerate(group):
        manager.save(Snapshot(10**6, {"n": 10**6}, cut.filled(10**6, rank, 3)))
    for manager in group:
        manager.wait()
    assert cut.check_whole(group[0].latest(), 3) == 10**6
    assert hidden(tmp_path) == []
