"""Folders that grow while they are read."""

from __future__ import annotations

import os
import threading
import time
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from recgrad.errors import DataError

DATA = "num_workers: 2 label_fields: 'label' follow: true"
FAST = "stream { poll_secs: 0.02 }"


def rows_table(count: int, start: int = 0) -> pa.Table:
    """Rows with a unique `id`."""
    rng = np.random.default_rng(start)
    return pa.table(
        {
            "id": pa.array(np.arange(start, start + count), pa.int64()),
            "label": pa.array(rng.integers(0, 2, count), pa.int64()),
            "price": pa.array(rng.random(count), pa.float32()),
            "cat": pa.array(rng.integers(0, 100, count), pa.int64()),
            "tags": pa.array([f"t{i % 7}" for i in range(count)], pa.string()),
            "clicks": pa.array([[1, 2]] * count, pa.list_(pa.int64())),
        }
    )


def put(folder: Path, name: str, count: int, start: int) -> None:
    pq.write_table(rows_table(count, start), folder / f".{name}", row_group_size=11)
    os.rename(folder / f".{name}", folder / name)


def ids_of(loader: Any, position: Any = None, batches: int | None = None) -> list[int]:
    found = islice(loader.epoch_with_rows(0, position), batches)
    return [row for _, table in found for row in table.column("id").to_pylist()]


def test_files_are_taken_as_they_come(tmp_path, open_loader):
    put(tmp_path, "a.parquet", 30, 0)
    loader = open_loader(str(tmp_path), f"{DATA} batch_size: 10 {FAST}", endless=True)
    batches = loader.epoch_with_rows()
    found = [row for _ in range(3) for row in next(batches)[1].column("id").to_pylist()]
    put(tmp_path, "b.parquet", 25, 30)
    put(tmp_path, "c.parquet", 25, 55)
    found += [row for _ in range(5) for row in next(batches)[1].column("id").to_pylist()]
    batches.close()
    assert found == list(range(80))


def test_the_end_after_a_time_without_files(tmp_path, open_loader):
    put(tmp_path, "a.parquet", 25, 0)
    text = f"{DATA} batch_size: 10 stream {{ poll_secs: 0.02 idle_secs: 0.1 }}"
    assert ids_of(open_loader(str(tmp_path), text, endless=True)) == list(range(25))


def test_a_file_counts_when_it_is_whole(tmp_path, open_loader):
    put(tmp_path, "a.parquet", 20, 0)
    pq.write_table(rows_table(20, 20), tmp_path / ".whole")
    content = (tmp_path / ".whole").read_bytes()
    (tmp_path / "b.parquet").write_bytes(content[: len(content) // 2])
    put(tmp_path, "c.parquet", 20, 40)
    loader = open_loader(str(tmp_path), f"{DATA} batch_size: 10 stream {{ poll_secs: 0.02 }}", endless=True)
    batches = loader.epoch_with_rows()
    found = [row for _ in range(2) for row in next(batches)[1].column("id").to_pylist()]
    finish = threading.Timer(0.2, lambda: (tmp_path / "b.parquet").write_bytes(content))
    finish.start()
    found += [row for _ in range(4) for row in next(batches)[1].column("id").to_pylist()]
    batches.close()
    assert found == list(range(60))


def test_a_file_that_comes_too_late_is_told(tmp_path, open_loader, caplog):
    put(tmp_path, "b.parquet", 20, 0)
    loader = open_loader(str(tmp_path), f"{DATA} batch_size: 10 {FAST}", endless=True)
    batches = loader.epoch_with_rows()
    found = [row for _ in range(2) for row in next(batches)[1].column("id").to_pylist()]
    put(tmp_path, "a.parquet", 20, 100)
    put(tmp_path, "c.parquet", 20, 20)
    found += [row for _ in range(2) for row in next(batches)[1].column("id").to_pylist()]
    batches.close()
    assert found == list(range(40))
    assert "a.parquet came after b.parquet was read and is left out" in caplog.text


def test_files_by_the_time_they_were_written(tmp_path, open_loader):
    for number, name in enumerate(["b", "c", "a"]):
        put(tmp_path, f"{name}.parquet", 10, number * 10)
        os.utime(tmp_path / f"{name}.parquet", (1000 + number, 1000 + number))
    text = f"{DATA} batch_size: 10 stream {{ file_order: MTIME }}"
    assert ids_of(open_loader(str(tmp_path), text)) == list(range(30))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("grown")
    start = 0
    for number, count in enumerate([17, 1, 40, 23, 5]):
        put(path, f"part-{number}.parquet", count, start)
        start += count
    return path


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    batch_size=st.integers(2, 20),
    runs=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 3)), max_size=2),
)
def test_every_row_once_with_any_number_of_ranks_at_each_resume(folder, open_loader, batch_size, runs):
    text = f"{DATA} batch_size: {batch_size}"
    found: list[int] = []
    saved: str | None = None
    # At the end one rank reads on; a row that is left alone waits for others.
    for ranks, batches in [*runs, (1, None)]:
        loaders = [open_loader(str(folder), text, rank=rank, world_size=ranks) for rank in range(ranks)]
        for loader in loaders:
            position = None if saved is None else loader.position_from(saved)
            if batches != 0:
                found += ids_of(loader, position, batches)
            elif position is not None:
                loader.position = position
        saved = loaders[0].join_positions([loader.position.to_json() for loader in loaders])
    assert len(found) == len(set(found))
    assert len(found) >= 85
    assert set(found) <= set(range(86))


def test_a_file_that_changed_after_its_first_rows_is_refused(tmp_path, open_loader):
    put(tmp_path, "a.parquet", 30, 0)
    loader = open_loader(str(tmp_path), f"{DATA} batch_size: 10")
    ids_of(loader, None, 1)
    saved = loader.position.to_json()
    put(tmp_path, "a.parquet", 31, 0)
    with pytest.raises(DataError, match=r"a.parquet changed since its first 10 rows were trained on"):
        ids_of(loader, loader.position_from(saved))
    (tmp_path / "a.parquet").unlink()
    put(tmp_path, "b.parquet", 31, 0)
    with pytest.raises(DataError, match=r"a.parquet was not read to its end and is not there now"):
        ids_of(loader, loader.position_from(saved))


def test_other_data_than_before_are_refused(folder, tmp_path, open_loader):
    put(tmp_path, "a.parquet", 30, 0)
    saved = open_loader(str(folder), f"{DATA} batch_size: 10").position.to_json()
    with pytest.raises(DataError, match=r"the run was on .*, and now on"):
        open_loader(str(tmp_path), f"{DATA} batch_size: 10").position_from(saved)


def test_who_waits_may_ask_to_stop(tmp_path, open_loader):
    put(tmp_path, "a.parquet", 10, 0)
    loader = open_loader(str(tmp_path), f"{DATA} batch_size: 10 stream {{ poll_secs: 0.02 }}", endless=True)
    begun = time.monotonic()
    loader.asked_to_stop = lambda: time.monotonic() - begun > 0.3
    assert ids_of(loader) == list(range(10))
