from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from recgrad.data import Batch, Loader, Position
from recgrad.data.position import FROM_WEIGHTS
from recgrad.errors import DataError

SIZES = [130, 9, 75]


def setting(workers: int, shuffle: bool, **extra: object) -> str:
    more = " ".join(f"{name}: {value}" for name, value in extra.items())
    return f"batch_size: 8 num_workers: {workers} shuffle: {shuffle} shuffle_buffer_size: 5 {more}"


def deliver(loader: Loader, epoch: int, position: Position | None = None) -> list[list[int]]:
    return [rows["id"].to_pylist() for _, rows in loader.epoch_with_rows(epoch, position)]


def consume(
    loader: Loader, epoch: int, count: int, position: Position | None = None
) -> tuple[list[list[int]], str]:
    """Take `count` batches and stop as a dying process would; what was read ahead is lost."""
    batches = loader.epoch_with_rows(epoch, position)
    taken = [rows["id"].to_pylist() for _, rows in islice(batches, count)]
    saved = loader.position.to_json()
    batches.close()
    return taken, saved


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 1, 4])
@pytest.mark.parametrize("accumulation", [1, 3])
def test_going_on_gives_exactly_the_rows_that_follow(write_rows, open_loader, workers, shuffle, accumulation):
    path = write_rows(SIZES, row_group_size=32)
    whole = deliver(open_loader(path, setting(1, shuffle), seed=3), 1)
    rng = np.random.default_rng([workers, shuffle, accumulation])
    for _ in range(4):
        # A step consumes `accumulation` batches and saves after them, again and again until the end.
        done: list[list[int]] = []
        position = None
        while len(done) < len(whole):
            steps = int(rng.integers(1, 6)) * accumulation
            # Every process has another number of threads.
            loader = open_loader(path, setting((workers + len(done)) % 5, shuffle), seed=3)
            taken, saved = consume(loader, 1, steps, position)
            done += taken
            position = Position.from_json(saved)
            assert position.batches == len(done)
        assert done == whole
        assert deliver(open_loader(path, setting(workers, shuffle), seed=3), 1, position) == []


@pytest.mark.parametrize("shuffle", [False, True])
def test_out_of_order_delivery_repeats_and_loses_nothing(write_rows, open_loader, shuffle):
    path = write_rows([400, 300], row_group_size=37)
    text = setting(4, shuffle, in_order="false")
    rng = np.random.default_rng(0)
    whole = sorted(deliver(open_loader(path, setting(1, shuffle)), 0))
    for _ in range(5):
        done: list[list[int]] = []
        position = None
        while len(done) < len(whole):
            loader = open_loader(path, text)
            taken, saved = consume(loader, 0, int(rng.integers(1, 30)), position)
            done += taken
            position = Position.from_json(saved)
        assert sorted(done) == whole


def test_a_gap_is_filled_after_going_on(write_rows, open_loader):
    """Batches delivered ahead of a gap are left out, and the gap is delivered."""
    path = write_rows([200])
    loader = open_loader(path, setting(2, True, in_order="false"))
    batches = deliver(loader, 0)
    start = loader._start(0)
    position = Position(0, 3, 8, ((16, 24), (80, 88)), 0, start.settings, start.files)
    rest = deliver(open_loader(path, setting(2, True, in_order="false")), 0, position)
    whole = deliver(open_loader(path, setting(1, True)), 0)
    left = [batch for i, batch in enumerate(whole) if i not in (0, 2, 10)]
    assert sorted(rest) == sorted(left)
    assert sorted(batches) == sorted(whole)


@pytest.mark.parametrize("shuffle", [False, True])
def test_going_on_when_batches_are_cut_by_cost(write_rows, open_loader, shuffle):
    path = write_rows(SIZES, row_group_size=32)
    text = setting(2, shuffle, batch_cost_size=50, sample_cost_field="'cost'")
    whole = deliver(open_loader(path, text), 0)
    for stop in range(1, len(whole), 5):
        taken, saved = consume(open_loader(path, text), 0, stop)
        assert taken + deliver(open_loader(path, text), 0, Position.from_json(saved)) == whole


def test_going_on_with_skipped_rows(write_rows, open_loader):
    import pyarrow as pa

    cats = np.arange(214) % 100
    cats[[3, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63, 100]] = 500
    path = write_rows(SIZES, cat=pa.array(cats, pa.int64()))
    text = setting(2, False, on_bad_row="SKIP", max_bad_row_ratio=0.5)
    whole = deliver(open_loader(path, text), 0)
    assert list(chain.from_iterable(whole)) == [i for i in range(214) if cats[i] < 100]
    for stop in range(1, len(whole)):
        taken, saved = consume(open_loader(path, text), 0, stop)
        loader = open_loader(path, text)
        assert taken + deliver(loader, 0, Position.from_json(saved)) == whole
        assert loader.position.bad_rows == 16
        assert loader.position.rows == 214


@pytest.mark.parametrize("shuffle", [False, True])
def test_batches_after_going_on_are_the_same_to_the_last_bit(write_rows, open_loader, shuffle):
    path = write_rows(SIZES)
    text = setting(2, shuffle, sample_mask_prob=0.3, label_fields="'label'")
    whole = list(open_loader(path, text).epoch(0))
    loader = open_loader(path, text)
    batches = loader.epoch(0)
    list(islice(batches, 7))
    batches.close()
    rest = list(open_loader(path, text).epoch(0, loader.position))
    assert len(rest) == len(whole) - 7
    for expected, got in zip(whole[7:], rest, strict=True):
        assert same(expected, got)


def same(a: Batch, b: Batch) -> bool:
    pairs = [
        (a.dense.values, b.dense.values),
        (a.sparse.values, b.sparse.values),
        (a.sparse.lengths, b.sparse.lengths),
        (a.sequence_sparse.values, b.sequence_sparse.values),
        (a.labels["label"], b.labels["label"]),
        (a.origin.row, b.origin.row),
    ]
    return all(torch.equal(x, y) for x, y in pairs)


def test_every_rank_resumes_from_one_rank_s_position(write_rows, open_loader):
    path = write_rows([83])
    for stop in range(1, 5):
        _, saved = consume(open_loader(path, setting(1, True), rank=0, world_size=2), 0, stop)
        for rank in range(2):
            whole = deliver(open_loader(path, setting(1, True), rank=rank, world_size=2), 0)
            loader = open_loader(path, setting(1, True), rank=rank, world_size=2)
            assert deliver(loader, 0, Position.from_json(saved)) == whole[stop:]


def test_the_path_may_be_spelled_otherwise(write_rows, open_loader, tmp_path: Path):
    path = write_rows(SIZES)
    whole = deliver(open_loader(path, setting(1, True)), 0)
    taken, saved = consume(open_loader(path, setting(1, True)), 0, 5)
    moved = tmp_path / "elsewhere"
    os.rename(path, moved)
    spelled = ",".join(f"{moved}/../elsewhere/part-{i}.parquet" for i in (2, 0, 1))
    assert taken + deliver(open_loader(spelled, setting(1, True)), 0, Position.from_json(saved)) == whole


def test_a_changed_file_is_named(write_rows, open_loader, make_rows):
    path = Path(write_rows(SIZES))
    _, saved = consume(open_loader(str(path), setting(1, False)), 0, 5)
    size = (path / "part-1.parquet").stat().st_size
    pq.write_table(make_rows(12, start=130), path / "part-1.parquet")
    now = (path / "part-1.parquet").stat().st_size
    with pytest.raises(DataError) as error:
        deliver(open_loader(str(path), setting(1, False)), 0, Position.from_json(saved))
    assert str(error.value) == (
        f"data: part-1.parquet changed since the position was saved ({size} bytes then, {now} now); "
        f"put the old file back, or, to train on other data, {FROM_WEIGHTS}"
    )
    (path / "part-1.parquet").rename(path / "part-9.parquet")
    assert "incremental training" in FROM_WEIGHTS
    assert "fine-tuning" in FROM_WEIGHTS
    gone = r"part-1\.parquet was part of the data when the position was saved .*; put it back, or, "
    with pytest.raises(DataError, match=gone + re.escape(f"to train on other data, {FROM_WEIGHTS}")):
        deliver(open_loader(str(path), setting(1, False)), 0, Position.from_json(saved))


def test_an_added_file_is_named(write_rows, open_loader, make_rows):
    path = Path(write_rows(SIZES))
    _, saved = consume(open_loader(str(path), setting(1, False)), 0, 5)
    pq.write_table(make_rows(12), path / "zz.parquet")
    with pytest.raises(DataError, match=r"^data: zz\.parquet was added since the position was saved"):
        deliver(open_loader(str(path), setting(1, False)), 0, Position.from_json(saved))


def test_a_changed_setting_is_named(write_rows, open_loader):
    path = write_rows(SIZES)
    _, saved = consume(open_loader(path, setting(1, True)), 0, 5)
    with pytest.raises(DataError) as error:
        deliver(open_loader(path, setting(1, True), seed=9), 0, Position.from_json(saved))
    assert str(error.value) == (
        "data: seed was 0 when the position was saved and is 9 now; resume with the same setting, or "
        + FROM_WEIGHTS
    )


def test_json_keeps_a_position():
    position = Position(3, 10, 80, ((88, 96), (104, 112)), 2, (("a", "1"), ("b", "x")), (("f", "9:ab"),))
    assert Position.from_json(position.to_json()) == position
    assert isinstance(json.loads(position.to_json()), dict)


def test_the_epoch_must_fit(write_rows, open_loader):
    loader = open_loader(write_rows([20]), setting(1, False))
    _, saved = consume(loader, 0, 1)
    with pytest.raises(ValueError, match="the position must be of epoch 1, got one of epoch 0"):
        deliver(loader, 1, Position.from_json(saved))


CHILD = """
import sys, json
from google.protobuf import text_format
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.data import Position, build_features, build_loader
from recgrad.models.targets import find_targets

config, path, saved, out = sys.argv[1:5]
config = text_format.Parse(open(config).read(), PipelineConfig())
features = build_features(config.feature_configs, fg_mode="FG_DAG", multival_sep="\\x03")
targets = find_targets(config)
loader = build_loader(
    config, path, features=features, targets=targets, training=True, seed=4, carry_columns=["id"]
)
try:
    position = Position.from_json(open(saved).read())
except FileNotFoundError:
    position = None
with open(out, "a") as log:
    for batch, rows in loader.epoch_with_rows(0, position):
        # One write: a batch counts as consumed when its line is whole.
        log.write(json.dumps({"ids": rows["id"].to_pylist(), "position": loader.position.to_json()}) + "\\n")
        log.flush()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("workers", "shuffle"), [(1, False), (3, True)])
def test_a_killed_process_is_followed_exactly(
    write_rows, open_loader, make_config, tmp_path: Path, workers, shuffle
):
    path = write_rows([9_000, 900], row_group_size=700)
    config = make_config(f"{setting(workers, shuffle)} fg_mode: FG_DAG")
    (tmp_path / "config").write_text(str(config))
    (tmp_path / "child.py").write_text(CHILD)
    saved, log = tmp_path / "saved", tmp_path / "log"
    command = [
        sys.executable,
        str(tmp_path / "child.py"),
        str(tmp_path / "config"),
        path,
        str(saved),
        str(log),
    ]
    rng = np.random.default_rng([workers, shuffle])
    consumed: list[dict] = []
    for kill in (True, True, False):
        stop = len(consumed) + int(rng.integers(20, 300))
        child = subprocess.Popen(command)
        while kill and child.poll() is None and (not log.exists() or log.read_bytes().count(b"\n") < stop):
            time.sleep(0.005)
        if kill:
            os.kill(child.pid, signal.SIGKILL)
        child.wait(timeout=120)
        whole_lines = log.read_bytes()
        whole_lines = whole_lines[: whole_lines.rfind(b"\n") + 1]  # the kill may have torn the last line
        log.write_bytes(whole_lines)
        consumed = [json.loads(line) for line in whole_lines.splitlines()]
        assert not kill or len(consumed) < 1238
        saved.write_text(consumed[-1]["position"])
    whole = deliver(open_loader(path, setting(workers, shuffle), seed=4), 0)
    assert [line["ids"] for line in consumed] == whole
