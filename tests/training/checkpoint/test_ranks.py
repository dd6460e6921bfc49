"""Several ranks write one checkpoint: it appears whole on all of them, or fails on all of them."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from recgrad.errors import CheckpointError
from recgrad.training.checkpoint import (
    CheckpointManager,
    Snapshot,
    TableRows,
    read_checkpoint,
    read_table,
    write_checkpoint,
)
from recgrad.training.checkpoint import ranks as ranks_module
from recgrad.training.checkpoint.staging import shared_folder


def hidden(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name.startswith("."))


def errors_of(group) -> list[str]:
    """What `wait` raises on each rank."""
    found = []
    for manager in group:
        with pytest.raises(CheckpointError) as raised:
            manager.wait()
        found.append(str(raised.value))
    return found


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_any_number_of_writers_is_read_whole_and_in_ranges(tmp_path, cut, make_table, same, world_size):
    user, item, tag = make_table("user", 60, 8), make_table("item", 40, 8, 1), make_table("tag", 20, 4, 2)
    rows = cut.row_wise(user, world_size)
    slices = cut.column_wise(item, np.linspace(0, 8, world_size + 1).astype(int).tolist())
    tables = [[rows[rank], slices[-1 - rank]] for rank in range(world_size)]
    tables[-1].append(tag)
    group = cut.managers(tmp_path, world_size)
    cut.save_together(group, 7, {"a": 1}, tables)
    assert os.listdir(tmp_path) == ["model.ckpt-7"]
    path = group[0].latest()
    snapshot = read_checkpoint(path)
    assert (snapshot.step, snapshot.tree) == (7, {"a": 1})
    for whole in (user, item, tag):
        (table,) = [table for table in snapshot.tables if table.name == whole.name]
        assert same(table.row_ids, whole.row_ids)
        assert same(table.weights, whole.weights)
        assert same(dict(table.states), dict(whole.states))
        for readers in (1, 3):
            bounds = np.linspace(0, whole.num_rows, readers + 1).astype(int).tolist()
            parts = [read_table(path, whole.name, rows=(a, b)) for a, b in pairwise(bounds)]
            assert same(np.concatenate([part.weights for part in parts]), whole.weights)
        half = read_table(path, whole.name, columns=(1, 3))
        assert np.array_equal(half.states["m"], whole.states["m"][:, 1:3])
        assert np.array_equal(half.states["v"], whole.states["v"])


def test_a_table_that_lies_on_one_rank_has_the_bytes_of_a_single_process(tmp_path, cut, make_table):
    table = make_table("user")
    cut.save_together(cut.managers(tmp_path, 3), 1, {"a": 1}, [[], [], [table]])
    alone = write_checkpoint(tmp_path / "alone", Snapshot(1, {"a": 1}, [table]))
    together = tmp_path / "model.ckpt-1"
    names = sorted(path.relative_to(alone) for path in alone.rglob("*"))
    assert names == sorted(path.relative_to(together) for path in together.rglob("*"))
    assert all(
        (alone / n).read_bytes() == (together / n).read_bytes() for n in names if (alone / n).is_file()
    )


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)], ids=str)
def test_ranks_may_come_in_any_order(tmp_path, cut, order):
    group = cut.managers(tmp_path, 3)
    for step in (1, 2):
        for rank in order:
            group[rank].save(Snapshot(step, {"n": step} if rank == 0 else {}, cut.filled(step, rank, 3)))
            time.sleep(0.05)
        assert step == 1 or cut.check_whole(group[0].path(1), 3) == 1
    for manager in group:
        manager.wait()
    assert cut.check_whole(group[0].path(2), 3) == 2
    assert sorted(os.listdir(tmp_path)) == ["model.ckpt-1", "model.ckpt-2"]


def test_no_rank_is_done_before_the_checkpoint_is_published(tmp_path, cut):
    group = cut.managers(tmp_path, 3)
    for rank in (0, 1):
        group[rank].save(Snapshot(1, {"n": 1}, cut.filled(1, rank, 3)))
    done = threading.Event()
    waiter = threading.Thread(target=lambda: (group[1].wait(), done.set()))
    waiter.start()
    assert not done.wait(0.4)
    assert group[0].steps() == []
    group[2].save(Snapshot(1, {}, cut.filled(1, 2, 3)))
    waiter.join(30)
    assert cut.check_whole(group[1].path(1), 3) == 1
    group[0].wait()
    group[2].wait()


def test_saving_a_step_again_replaces_it_on_all_ranks(tmp_path, cut):
    group = cut.managers(tmp_path, 2)
    for shift in (0, 5):
        tables = [cut.filled(1 + shift, rank, 2) for rank in range(2)]
        cut.save_together(group, 1, {"n": shift}, tables)
    assert read_checkpoint(group[0].path(1)).tree == {"n": 5}
    assert np.all(read_table(group[0].path(1), "rows").weights == 6)
    assert os.listdir(tmp_path) == ["model.ckpt-1"]


def test_only_rank_0_removes_and_marks(tmp_path, cut):
    group = cut.managers(tmp_path, 2, keep_max=1)
    for step in (1, 2, 3):
        cut.save_together(group, step, {"n": step}, [cut.filled(step, rank, 2) for rank in range(2)])
        group[1].mark_best(step)
        assert group[0].best() == (None if step == 1 else 1)
        if step == 1:
            group[0].mark_best(1)
    assert group[0].steps() == [1, 3]


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_a_rank_whose_disk_is_full_fails_the_save_on_all(tmp_path, cut, monkeypatch, failing):
    group = cut.managers(tmp_path, 3)
    write_rows = ranks_module.write_rows

    def full(folder, path, table):
        if table.name == "rows" and table.row_ids[0] == 40 * failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_rows(folder, path, table)

    with monkeypatch.context() as patch:
        patch.setattr(ranks_module, "write_rows", full)
        for rank, manager in enumerate(group):
            manager.save(Snapshot(1, {"n": 1}, cut.filled(1, rank, 3)))
        start = time.monotonic()
        for message in errors_of(group):
            assert f"model.ckpt-1: the checkpoint could not be written (rank {failing}: No space" in message
        assert time.monotonic() - start < 20, "somebody has waited for the timeout"
    assert group[0].steps() == []
    cut.save_together(group, 1, {"n": 1}, [cut.filled(1, rank, 3) for rank in range(3)])
    assert cut.check_whole(group[0].path(1), 3) == 1
    assert hidden(tmp_path) == []


def test_a_disk_without_space_for_a_word_about_it(tmp_path, cut, monkeypatch):
    group = cut.managers(tmp_path, 2)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(ranks_module, "write_file_atomically", full)
        for rank, manager in enumerate(group):
            manager.save(Snapshot(1, {"n": 1}, cut.filled(1, rank, 2)))
        first, second = errors_of(group)
    assert "(rank 1: failed, and had no space to say why)" in first
    assert "(rank 1: No space left on device)" in second
    assert group[0].steps() == []


def test_an_error_of_the_program_on_one_rank_fails_the_save_on_all(tmp_path, cut, monkeypatch):
    group = cut.managers(tmp_path, 2)
    monkeypatch.setattr(ranks_module, "describe_shard", lambda *_: 1 / 0)
    group[1].save(Snapshot(1, {}, cut.filled(1, 1, 2)))
    group[0].save(Snapshot(1, {"n": 1}, []))
    assert all("ZeroDivisionError" in message for message in errors_of(group))
    assert group[0].steps() == []


def test_a_tree_that_cannot_be_stored_fails_the_save_on_all(tmp_path, cut):
    group = cut.managers(tmp_path, 2)
    for rank, manager in enumerate(group):
        manager.save(Snapshot(1, {"n": {1, 2}}, cut.filled(1, rank, 2)))
    assert all("a set cannot be stored" in message for message in errors_of(group))


def test_a_table_that_two_ranks_hand_in_fails_the_save_on_all(tmp_path, cut, make_table):
    """A replicated table must come from rank 0 alone; it is noticed before it is published."""
    group = cut.managers(tmp_path, 2)
    for manager in group:
        manager.save(Snapshot(1, {}, [make_table("user")]))
    assert all(
        "table 'user': row " in message and "is in two shards" in message for message in errors_of(group)
    )
    assert group[0].steps() == []


def test_a_model_dir_that_is_a_file_fails_on_all(tmp_path, cut):
    (tmp_path / "file").touch()
    group = cut.managers(tmp_path / "file", 2)
    for manager in group:
        manager.save(Snapshot(1, {}))
    assert all("checkpoints cannot be written there" in message for message in errors_of(group))


def test_a_rank_that_does_not_come_is_named_on_all(tmp_path, cut):
    group = cut.managers(tmp_path, 4, timeout_secs=0.6)
    for rank in (0, 1, 3):
        group[rank].save(Snapshot(1, {"n": 1}, cut.filled(1, rank, 4)))
    for message in errors_of([group[rank] for rank in (0, 1, 3)]):
        assert "model.ckpt-1: " in message
        assert "(rank 2: not done within 0.6 s, may have died)" in message
    assert group[0].steps() == []


def test_without_rank_0_the_others_give_up(tmp_path, cut):
    _, other = cut.managers(tmp_path, 2, timeout_secs=0.3)
    other.save(Snapshot(1, {}, cut.filled(1, 1, 2)))
    assert "(rank 0: not begun within 0.3 s, may have died)" in errors_of([other])[0]


def test_when_rank_0_dies_in_a_save_the_others_give_up(tmp_path, cut):
    _, other = cut.managers(tmp_path, 2, timeout_secs=0.4)
    shared_folder(tmp_path / "model.ckpt-1", "run-1-0").mkdir()
    other.save(Snapshot(1, {}, cut.filled(1, 1, 2)))
    assert "(rank 0: not done within 1.5 s, may have died)" in errors_of([other])[0]


def test_a_slow_rank_is_waited_for_as_long_as_it_writes(tmp_path, cut, monkeypatch):
    """The timeout is of silence: a large shard may take longer."""
    group = cut.managers(tmp_path, 2, timeout_secs=1.0)
    write_rows = ranks_module.write_rows

    def slow(folder, path, table):
        if path.startswith("rank-00001"):
            time.sleep(0.4)
        return write_rows(folder, path, table)

    monkeypatch.setattr(ranks_module, "write_rows", slow)
    many = [TableRows(f"t{n}", 5, 2, np.arange(5), np.ones((5, 2))) for n in range(6)]
    start = time.monotonic()
    cut.save_together(group, 1, {}, [[], many])
    assert time.monotonic() - start > 2
    assert len(read_checkpoint(group[0].path(1)).tables) == 6


def test_leftovers_of_a_killed_run_are_neither_taken_nor_kept(tmp_path, cut):
    """The same step, the same ranks, whole records; but of another start of the run."""
    old = shared_folder(tmp_path / "model.ckpt-1", "run-0-0")
    for rank in (1, 2):
        (old / f"rank-0000{rank}").mkdir(parents=True)
        record = {"step": 1, "token": "run-0", "world_size": 3, "shards": []}
        (old / f"rank-0000{rank}.json").write_text(json.dumps(record))
    group = cut.managers(tmp_path, 3)
    for rank in (2, 1):
        group[rank].save(Snapshot(1, {}, cut.filled(1, rank, 3)))
    time.sleep(0.2)
    assert old.is_dir(), "only rank 0 may remove what is left"
    group[0].save(Snapshot(1, {"n": 1}, cut.filled(1, 0, 3)))
    for manager in group:
        manager.wait()
    assert cut.check_whole(group[0].path(1), 3) == 1
    assert os.listdir(tmp_path) == ["model.ckpt-1"]


@pytest.mark.parametrize(
    ("key", "value"),
    [("token", "run-0"), ("step", 2), ("world_size", 4)],
    ids=["token", "step", "world size"],
)
def test_a_record_of_another_save_is_refused(tmp_path, cut, key, value):
    first, _ = cut.managers(tmp_path, 2)
    staging = shared_folder(tmp_path / "model.ckpt-1", "run-1-0")
    first.save(Snapshot(1, {"n": 1}, []))
    while not staging.is_dir():
        time.sleep(0.001)
    record = {"step": 1, "token": "run-1", "world_size": 2, "shards": [], key: value}
    (staging / "part").write_text(json.dumps(record))
    os.rename(staging / "part", staging / "rank-00001.json")
    with pytest.raises(CheckpointError, match=f"rank 1: saves {key} {value}, rank 0 {key} "):
        first.wait()
    assert first.steps() == []


def test_a_token_that_was_used_before_is_refused(tmp_path, cut):
    shared_folder(tmp_path / "model.ckpt-1", "run-1-0").mkdir()
    first, _ = cut.managers(tmp_path, 2)
    first.save(Snapshot(1, {}))
    with pytest.raises(CheckpointError, match="token 'run-1' was used before"):
        first.wait()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": 2, "world_size": 2, "token": "a"}, r"rank must be in 0 … 1, got 2"),
        ({"rank": -1}, r"rank must be in 0 … 0, got -1"),
        ({"world_size": 2}, "several ranks need a token"),
        ({"world_size": 2, "token": "a/b"}, "several ranks need a token"),
        ({"timeout_secs": 0}, "timeout_secs must be above 0"),
    ],
    ids=str,
)
def test_arguments_that_make_no_sense_are_refused(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        CheckpointManager(tmp_path, **options)
