"""Full disks, kills, folders that cannot be written to, two writers: no torn checkpoint, ever."""

from __future__ import annotations

import errno
import fcntl
import os
import pathlib
import random
import resource
import signal
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from recgrad.errors import CheckpointError
from recgrad.training.checkpoint import (
    CheckpointManager,
    Snapshot,
    TableRows,
    read_checkpoint,
    write_checkpoint,
)
from recgrad.training.checkpoint import staging as staging_module
from recgrad.training.checkpoint.staging import remove_leftovers, staged_folder


def snapshot(step: int, rows: int = 5) -> Snapshot:
    """A checkpoint all of whose values are its step."""
    weights = np.full((rows, 8), step, np.float32)
    return Snapshot(step, {"n": step}, [TableRows("t", rows, 8, np.arange(rows), weights, {"m": weights})])


def in_child(work: Callable[[], None]) -> int:
    """Run in a forked process, which is quicker to start than one that imports torch; its id."""
    process = os.fork()
    if process:
        return process
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(1)


def exit_code(process: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def leftovers(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".")]


def check_whole(path: Path) -> int:
    """The step of a checkpoint, every value of which must be that step's."""
    snapshot = read_checkpoint(path)
    assert snapshot.tree == {"n": snapshot.step}
    (table,) = snapshot.tables
    assert np.all(table.weights == snapshot.step)
    assert np.all(table.states["m"] == snapshot.step)
    return snapshot.step


@pytest.mark.parametrize(
    ("call", "moment"),
    [*((call, moment) for call in ("write", "fsync", "mkdir") for moment in range(3)), ("rename", 0)],
)
def test_a_disk_that_fills_up_leaves_nothing_and_the_next_save_works(
    tmp_path, monkeypatch, make_snapshot, call, moment
):
    manager = CheckpointManager(tmp_path)
    manager.save(make_snapshot(1), block=True)
    calls = 0
    real = getattr(os, call)

    def full(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls > moment:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        if call == "mkdir" and hasattr(pathlib, "_NormalAccessor"):  # of Python 3.10
            patch.setattr(pathlib._NormalAccessor, call, staticmethod(full))
        manager.save(make_snapshot(2))
        with pytest.raises(CheckpointError, match=r"model.ckpt-2: .*No space left on device"):
            manager.wait()
        assert calls > moment
    assert manager.steps() == [1]
    assert leftovers(tmp_path) == []
    assert manager.latest() == manager.path(1)
    manager.save(make_snapshot(2), block=True)
    assert manager.latest() == manager.path(2)


def test_a_real_file_size_limit_surfaces_as_an_error_and_training_can_resume_command(tmp_path):
    def train():
        manager = CheckpointManager(tmp_path)
        manager.save(snapshot(1, 1000), block=True)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, resource.RLIM_INFINITY))
        manager.save(snapshot(2, 100_000))
        with pytest.raises(CheckpointError, match=r"model.ckpt-2: the checkpoint .* \(File too large\)"):
            manager.save(snapshot(3, 100_000))
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        manager.save(snapshot(4, 100_000), block=True)

    assert exit_code(in_child(train)) == 0
    assert sorted(os.listdir(tmp_path)) == ["model.ckpt-1", "model.ckpt-4"]
    assert check_whole(CheckpointManager(tmp_path).latest()) == 4


def test_a_model_dir_that_cannot_be_written_to(tmp_path):
    target = tmp_path / "read-only"
    target.mkdir(mode=0o555)

    def train():
        # Root may write anywhere, so the child gives up being root; its working directory
        # spares it the way through folders that are closed to others.
        os.chdir(target)
        if os.getuid() == 0:
            os.setgid(65534)
            os.setuid(65534)
        manager = CheckpointManager(".")
        manager.save(snapshot(1))
        with pytest.raises(CheckpointError, match=r"model.ckpt-1: .*Permission denied"):
            manager.wait()

    assert exit_code(in_child(train)) == 0
    assert os.listdir(target) == []


def test_a_model_dir_that_is_a_file(tmp_path):
    (tmp_path / "file").touch()
    manager = CheckpointManager(tmp_path / "file")
    manager.save(Snapshot(1, {}))
    with pytest.raises(CheckpointError, match="file: checkpoints cannot be written there"):
        manager.wait()


@pytest.mark.parametrize("step_size", [1, 0], ids=["new steps", "the same step again"])
def test_killed_at_any_moment_the_newest_checkpoint_is_whole(tmp_path, step_size):
    """SIGKILL while saving without pause; whatever is there under its name must be whole."""
    rng = random.Random(step_size)
    CheckpointManager(tmp_path).save(snapshot(0), block=True)
    seen_leftover = 0
    for _ in range(25):
        newest = CheckpointManager(tmp_path).steps()[-1]

        def save_forever(step=newest + 1):
            manager = CheckpointManager(tmp_path, keep_max=2)
            while True:
                manager.save(snapshot(step, 20_000))
                step += step_size

        process = in_child(save_forever)
        time.sleep(rng.uniform(0.01, 0.08))
        os.kill(process, signal.SIGKILL)
        assert exit_code(process) == -signal.SIGKILL
        seen_leftover += bool(leftovers(tmp_path))
        manager = CheckpointManager(tmp_path)
        assert manager.steps()
        for step in manager.steps():
            assert check_whole(manager.path(step)) == step
    assert seen_leftover > 5, "too few kills hit a write; the test proves nothing"
    CheckpointManager(tmp_path).save(snapshot(10**6), block=True)
    assert leftovers(tmp_path) == []


SYSTEM_CALLS = ("mkdir", "open", "write", "fsync", "close", "rename", "unlink", "rmdir")


def die_at(count):
    """Make this process kill itself when it makes its `count`-th change to the file system."""
    calls = 0

    def counted(real):
        def call(*arguments, **options):
            nonlocal calls
            calls += 1
            if calls == count:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)

        return call

    for name in SYSTEM_CALLS:
        setattr(os, name, counted(getattr(os, name)))


@pytest.mark.slow
def test_killed_at_every_single_call_while_replacing_the_only_checkpoint(tmp_path):
    """Either the old or the new one is there, whole, whichever call was the last."""
    steps_seen = set()
    for count in range(1, 500):
        folder = tmp_path / str(count)
        CheckpointManager(folder).save(snapshot(1), block=True)

        def replace(folder=folder, count=count):
            changed = snapshot(1)
            die_at(count)
            CheckpointManager(folder, keep_max=1).save(Snapshot(1, {"n": "new"}, changed.tables), block=True)

        code = exit_code(in_child(replace))
        kept = read_checkpoint(CheckpointManager(folder).latest())
        steps_seen.add(kept.tree["n"])
        if code == 0:
            break
        assert code == -signal.SIGKILL
        CheckpointManager(folder).save(snapshot(2), block=True)
        assert leftovers(folder) == []
    assert code == 0
    assert count > 30
    assert steps_seen == {1, "new"}


def test_two_writers_of_the_same_steps_do_not_harm_each_other(tmp_path):
    def train():
        manager = CheckpointManager(tmp_path, keep_max=3)
        for step in range(1, 31):
            manager.save(snapshot(step, 2_000))
        manager.wait()

    writers = [in_child(train) for _ in range(2)]
    manager = CheckpointManager(tmp_path)
    found = None
    while found != manager.path(30):
        # A reader finds a whole one at any moment, though the writers remove old ones.
        found = manager.latest() or found
    assert [exit_code(writer) for writer in writers] == [0, 0]
    assert manager.steps() == [28, 29, 30]
    assert [check_whole(manager.path(step)) for step in manager.steps()] == [28, 29, 30]
    assert leftovers(tmp_path) == []


def test_a_living_writer_s_folder_is_not_taken_for_a_leftover(tmp_path):
    with staged_folder(tmp_path / "model.ckpt-1") as staging:
        (staging / "half").write_text("written")
        assert remove_leftovers(tmp_path, "model.ckpt-") == []
        assert (staging / "half").exists()
    assert (tmp_path / "model.ckpt-1" / "half").read_text() == "written"


@pytest.mark.parametrize("folder", [True, False])
def test_what_a_cleaner_takes_before_it_is_locked_is_made_again(tmp_path, monkeypatch, folder):
    """The cleaner of another process strikes between the making and the locking."""
    cleaned = []
    lock = staging_module._lock

    def slow(descriptor):
        if len(cleaned) < 3:
            cleaned.extend(remove_leftovers(tmp_path, "model"))
        return lock(descriptor)

    monkeypatch.setattr(staging_module, "_lock", slow)
    if folder:
        write_checkpoint(tmp_path / "model", Snapshot(1, {"n": 1}))
        assert read_checkpoint(tmp_path / "model").step == 1
    else:
        staging_module.write_file_atomically(tmp_path / "model", b"content")
        assert (tmp_path / "model").read_bytes() == b"content"
    assert len(cleaned) == 3
    assert os.listdir(tmp_path) == ["model"]


def test_what_a_cleaner_has_locked_is_left_to_it(tmp_path, monkeypatch):
    locked = []
    lock = staging_module._lock

    def beaten(descriptor):
        if not locked:
            locked.append(os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY))
            fcntl.flock(locked[0], fcntl.LOCK_EX)
        return lock(descriptor)

    monkeypatch.setattr(staging_module, "_lock", beaten)
    with staged_folder(tmp_path / "c") as staging:
        assert len(os.listdir(tmp_path)) == 2
        assert os.fstat(locked[0]).st_ino != staging.stat().st_ino
    os.close(locked[0])


def test_leftovers_go_and_nothing_else(tmp_path):
    for name in (".model.ckpt-3.writing-ab", ".model.ckpt-3", ".other.writing-ab", "model.ckpt-3.writing-ab"):
        (tmp_path / name).mkdir()
    (tmp_path / ".model.ckpt-4.writing-cd").symlink_to(tmp_path / ".other.writing-ab")
    assert remove_leftovers(tmp_path, "model.ckpt-") == [".model.ckpt-3.writing-ab"]
    assert len(os.listdir(tmp_path)) == 4


def test_an_interrupt_while_writing_leaves_nothing(tmp_path):
    def write():
        with staged_folder(tmp_path / "c") as staging:
            (staging / "half").touch()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write()
    assert os.listdir(tmp_path) == []


def test_without_an_exchange_call_a_folder_is_still_replaced(tmp_path, monkeypatch):
    write_checkpoint(tmp_path / "c", Snapshot(1, {"n": "old"}))
    monkeypatch.setattr(staging_module, "_exchange", lambda *_: False)
    write_checkpoint(tmp_path / "c", Snapshot(2, {"n": "new"}))
    assert read_checkpoint(tmp_path / "c").tree == {"n": "new"}
    assert os.listdir(tmp_path) == ["c"]


def test_python_runs_on_while_a_checkpoint_is_written(tmp_path):
    """The writer must not hold the interpreter's lock: a loop of bytecode keeps its pace."""
    rows = 1_000_000
    weights = np.ones((rows, 32), np.float32)
    manager = CheckpointManager(tmp_path)
    pauses = []
    done = threading.Event()

    def beat():
        last = time.perf_counter()
        while not done.is_set():
            time.sleep(0.001)
            now = time.perf_counter()
            pauses.append(now - last)
            last = now

    thread = threading.Thread(target=beat)
    thread.start()
    manager.save(Snapshot(1, {}, [TableRows("t", rows, 32, np.arange(rows), weights, {})]), block=True)
    done.set()
    thread.join()
    assert len(pauses) > 20
    assert np.median(pauses) < 0.02
