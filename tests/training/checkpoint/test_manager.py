"""The checkpoints of a model_dir: background saves, keeping, the newest whole one."""

from __future__ import annotations

import logging
import os
import sys
import threading

import pytest

from recgrad.errors import CheckpointError
from recgrad.training.checkpoint import (
    CheckpointManager,
    Snapshot,
    read_checkpoint,
    resolve_checkpoint,
)
from recgrad.training.checkpoint import (
    manager as manager_module,
)


def save_all(manager, *steps):
    for step in steps:
        manager.save(Snapshot(step, {"n": step}))
    manager.wait()


def damage(path):
    content = bytearray((path / "tree.json").read_bytes())
    content[0] ^= 1
    (path / "tree.json").write_bytes(content)


@pytest.fixture
def gate(monkeypatch):
    """Holds the background thread before it writes, until the test opens it."""
    gate = threading.Event()
    write = manager_module.write_checkpoint
    monkeypatch.setattr(manager_module, "write_checkpoint", lambda *a: (gate.wait(30), write(*a))[1])
    yield gate
    gate.set()


def test_save_returns_before_the_checkpoint_is_written(tmp_path, gate):
    manager = CheckpointManager(tmp_path)
    manager.save(Snapshot(1, {"n": 1}))
    assert manager.steps() == []
    gate.set()
    manager.wait()
    assert manager.steps() == [1]


def test_a_second_save_waits_for_the_first(tmp_path, gate):
    manager = CheckpointManager(tmp_path)
    manager.save(Snapshot(1, {"n": 1}))
    threading.Timer(0.2, gate.set).start()
    manager.save(Snapshot(2, {"n": 2}))
    assert 1 in manager.steps()
    manager.wait()
    assert manager.steps() == [1, 2]


def test_block_waits(tmp_path):
    manager = CheckpointManager(tmp_path / "made" / "on demand")
    manager.save(Snapshot(4, {"n": 4}), block=True)
    assert manager.steps() == [4]


def test_nothing_there(tmp_path):
    manager = CheckpointManager(tmp_path / "absent")
    assert manager.steps() == []
    assert manager.latest() is None
    assert manager.best() is None
    manager.wait()


def test_folders_that_are_no_checkpoints_are_not_counted(tmp_path):
    for name in (
        "model.ckpt-",
        "model.ckpt-01",
        "model.ckpt-1.bak",
        "model.ckpt--1",
        "model.ckpt-٣",
        "xmodel.ckpt-3",
    ):
        (tmp_path / name).mkdir()
    (tmp_path / "model.ckpt-9").touch()
    assert CheckpointManager(tmp_path).steps() == []


def test_keep_max_keeps_the_newest(tmp_path):
    manager = CheckpointManager(tmp_path, keep_max=2)
    save_all(manager, 1, 2, 10, 9)
    assert manager.steps() == [2, 9, 10]
    save_all(manager, 11)
    assert manager.steps() == [10, 11]


def test_keep_max_of_zero_keeps_all(tmp_path):
    manager = CheckpointManager(tmp_path)
    save_all(manager, *range(6))
    assert manager.steps() == list(range(6))


def test_a_negative_keep_max_is_refused(tmp_path):
    with pytest.raises(ValueError, match="keep_max must be at least 0, got -1"):
        CheckpointManager(tmp_path, keep_max=-1)


def test_the_best_is_kept_until_another_is_best(tmp_path):
    manager = CheckpointManager(tmp_path, keep_max=1)
    save_all(manager, 1)
    manager.mark_best(1)
    save_all(manager, 2, 3)
    assert manager.steps() == [1, 3]
    later = CheckpointManager(tmp_path, keep_max=1)
    assert later.best() == 1
    save_all(later, 4)
    assert later.steps() == [1, 4]
    later.mark_best(4)
    assert later.steps() == [4]
    save_all(later, 5)
    assert later.steps() == [4, 5]


def test_a_checkpoint_still_being_written_can_be_best(tmp_path, gate):
    manager = CheckpointManager(tmp_path, keep_max=1)
    manager.save(Snapshot(1, {"n": 1}))
    manager.mark_best(1)
    gate.set()
    save_all(manager, 2, 3)
    assert manager.steps() == [1, 3]


def test_a_step_without_checkpoint_cannot_be_best(tmp_path):
    with pytest.raises(CheckpointError, match=r"model\.ckpt-3: cannot be marked best"):
        CheckpointManager(tmp_path).mark_best(3)


def test_an_unreadable_best_mark_keeps_everything(tmp_path, caplog):
    manager = CheckpointManager(tmp_path, keep_max=1)
    (tmp_path / "best_checkpoint.json").write_text("{}")
    with caplog.at_level(logging.WARNING):
        save_all(manager, 1, 2)
    assert manager.steps() == [1, 2]
    assert "old checkpoints are kept" in caplog.text


def test_a_damaged_newest_is_said_and_the_one_before_is_used(tmp_path, caplog):
    manager = CheckpointManager(tmp_path)
    save_all(manager, 1, 2, 3)
    damage(manager.path(3))
    with caplog.at_level(logging.WARNING):
        assert manager.latest() == manager.path(2)
    assert "model.ckpt-3/tree.json: is damaged" in caplog.text


def test_all_damaged_is_an_error_not_a_fresh_start(tmp_path):
    manager = CheckpointManager(tmp_path)
    save_all(manager, 1, 2)
    damage(manager.path(1))
    (manager.path(2) / "manifest.json").unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint is whole\n.*model.ckpt-2.*\n.*model.ckpt-1"):
        manager.latest()


def test_a_checkpoint_that_goes_while_it_is_read_is_not_called_damaged(tmp_path, monkeypatch, caplog):
    manager = CheckpointManager(tmp_path)
    save_all(manager, 1, 2)
    verify = manager_module.verify_checkpoint

    def slow(path, doing=None):
        if path == manager.path(2) and 3 not in manager.steps():
            save_all(CheckpointManager(tmp_path, keep_max=1), 3)
        return verify(path, doing=doing)

    monkeypatch.setattr(manager_module, "verify_checkpoint", slow)
    with caplog.at_level(logging.WARNING):
        assert manager.latest() == manager.path(3)
    assert caplog.text == ""


def test_a_folder_that_was_renamed_is_not_taken_for_another_step(tmp_path):
    manager = CheckpointManager(tmp_path)
    save_all(manager, 1, 2)
    manager.path(1).rename(manager.path(5))
    assert manager.latest() == manager.path(2)


def test_a_rewound_run_keeps_what_it_writes_and_replaces_the_damaged(tmp_path):
    manager = CheckpointManager(tmp_path, keep_max=1)
    save_all(manager, 100)
    damaged = CheckpointManager(tmp_path)
    save_all(damaged, 200)
    damage(damaged.path(200))
    assert manager.latest() == manager.path(100)
    save_all(manager, 150)
    assert manager.steps() == [150, 200]
    assert manager.latest() == manager.path(150)
    save_all(manager, 200)
    assert manager.steps() == [200]
    assert read_checkpoint(manager.latest()).tree == {"n": 200}


def test_saving_a_step_again_replaces_it(tmp_path):
    manager = CheckpointManager(tmp_path)
    manager.save(Snapshot(1, {"n": "old"}))
    manager.save(Snapshot(1, {"n": "new"}))
    manager.wait()
    assert read_checkpoint(manager.latest()).tree == {"n": "new"}
    assert os.listdir(tmp_path) == ["model.ckpt-1"]


def test_the_newest_is_by_step_whatever_the_clock_says(tmp_path):
    manager = CheckpointManager(tmp_path, keep_max=2)
    save_all(manager, 1, 2)
    for step, when in ((1, 4e9), (2, 1.0)):
        for folder, _, files in os.walk(manager.path(step)):
            for name in (".", *files):
                os.utime(os.path.join(folder, name), (when, when))
    assert manager.latest() == manager.path(2)
    save_all(manager, 3)
    assert manager.steps() == [2, 3]


def test_resolve_takes_a_checkpoint_or_a_model_dir(tmp_path):
    manager = CheckpointManager(tmp_path / "run")
    save_all(manager, 1, 2)
    assert resolve_checkpoint(manager.path(1)) == manager.path(1)
    assert resolve_checkpoint(tmp_path / "run") == manager.path(2)
    assert resolve_checkpoint(str(tmp_path / "run")) == manager.path(2)
    copied = manager.path(1).rename(tmp_path / "kept")
    assert resolve_checkpoint(copied) == copied
    with pytest.raises(CheckpointError, match="absent: there is no such folder"):
        resolve_checkpoint(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(CheckpointError, match="empty: has no checkpoint"):
        resolve_checkpoint(tmp_path / "empty")


def test_an_unstorable_value_surfaces_at_the_next_call(tmp_path):
    manager = CheckpointManager(tmp_path)
    manager.save(Snapshot(1, {"n": {1, 2}}))
    with pytest.raises(CheckpointError, match="a set cannot be stored"):
        manager.save(Snapshot(2, {"n": 2}))
    manager.save(Snapshot(2, {"n": 2}), block=True)
    assert manager.steps() == [2]


def test_a_programming_error_in_the_thread_is_not_lost(tmp_path, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(manager_module, "write_checkpoint", broken)
    manager = CheckpointManager(tmp_path)
    manager.save(Snapshot(1, {}))
    with pytest.raises(CheckpointError, match=r"model.ckpt-1: .*ZeroDivisionError\('oops'\)"):
        manager.wait()
    manager.wait()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have one priority a process")
def test_the_thread_that_writes_lets_steps_go_first(tmp_path):
    manager = CheckpointManager(tmp_path)
    own = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    found = manager._pool.submit(lambda: os.getpriority(os.PRIO_PROCESS, threading.get_native_id())).result()
    assert found == min(own + manager_module.NICENESS, 19)
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == own
