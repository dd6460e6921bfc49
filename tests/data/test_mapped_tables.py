"""Tables of samplers in memory-mapped files: the same draws, built once, and again when they must be."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import fsspec
import numpy as np
import pyarrow as pa
import pytest

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.samplers import edges, items, mapped
from recgrad.data.samplers.draws import draw_items, draw_others
from recgrad.data.samplers.edges import EdgeSource, group_edges, load_edges
from recgrad.data.samplers.items import ItemTable, TableSource, load_items
from recgrad.data.samplers.mapped import array_of, mapped_table

WEIGHTS = np.array([0.5, 3.0, 1.0, 0.0, 2.5])
KEYS = np.array([7, 3, 9, 1, 4])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder of the test's own, and a process that has loaded nothing yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for module, name in ((items, "_tables"), (edges, "_edges")):
        getattr(module, name).clear()
    yield tmp_path / "cache/recgrad/samplers"
    for module, name in ((items, "_tables"), (edges, "_edges")):
        getattr(module, name).clear()


def item_source(path: object) -> TableSource:
    return TableSource(str(path), ("item", "kind"), ":", "\t", ("int64", ""), False)


def write_items(path: Path, weights: np.ndarray = WEIGHTS) -> None:
    rows = [f"{key}\t{weight}\t{key}:k{key}" for key, weight in zip(KEYS, weights, strict=True)]
    path.write_text("\n".join(["id:int64\tweight:float\tattrs:string", *rows, ""]))


def kept(cache: Path) -> list[Path]:
    return sorted(cache.glob("*.arrow"))


def mapped_by_process() -> str:
    return Path("/proc/self/maps").read_text()


def test_items_are_drawn_as_from_memory(cache: Path, tmp_path: Path) -> None:
    write_items(tmp_path / "items.txt")
    found = load_items(item_source(tmp_path / "items.txt"), DataConfig())
    memory = ItemTable.of("items", KEYS, WEIGHTS, {})
    for key in ((0, 1), (5, 2)):
        np.testing.assert_array_equal(draw_items(found, 100, key), draw_items(memory, 100, key))
        own = np.array([3, 9])
        np.testing.assert_array_equal(draw_others(found, own, 100, key), draw_others(memory, own, 100, key))
    np.testing.assert_array_equal(found.rows_of(np.array([4, 2, 7])), [4, -1, 0])
    assert found.take(np.array([1, 2]))["kind"].to_pylist() == ["k3", "k9"]
    (file,) = kept(cache)
    assert not found.keep.flags.writeable
    if os.path.exists("/proc/self/maps"):
        assert str(file) in mapped_by_process()


def test_edges_are_those_in_memory(cache: Path, tmp_path: Path) -> None:
    users, wanted = np.array([5, 2, 5, 2, 2]), np.array([1, 8, 0, 3, 8])
    lines = [f"{user}\t{item}\t1" for user, item in zip(users, wanted, strict=True)]
    (tmp_path / "edges.txt").write_text("\n".join(["userid:int64\titemid:int64\tweight:float", *lines, ""]))
    found = load_edges(EdgeSource(str(tmp_path / "edges.txt"), "\t", False, False, False), DataConfig())
    memory = group_edges("edges", users, wanted)
    for name in ("users", "starts", "items"):
        np.testing.assert_array_equal(getattr(found, name), getattr(memory, name))
    assert [len(part) for part in found.ranges(np.array([2, 4]))] == [2, 2]


def test_no_edges_at_all(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "edges.txt").write_text("userid:int64\titemid:int64\tweight:float\n")
    found = load_edges(EdgeSource(str(tmp_path / "edges.txt"), "\t", False, False, False), DataConfig())
    starts, stops = found.ranges(np.array([2, 4]))
    assert (starts == stops).all()


def test_processes_wait_for_the_one_that_builds(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "table").write_text("x")
    built: list[int] = []

    def build() -> pa.RecordBatch:
        built.append(1)
        time.sleep(0.2)
        return pa.RecordBatch.from_pydict({"x": [1, 2]})

    found: list[list[int]] = []
    # Locks are of open files, so that threads stand for processes here.
    threads = [
        threading.Thread(
            target=lambda: found.append(
                array_of(mapped_table("t", str(tmp_path / "table"), 0, build), "x").tolist()
            )
        )
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[1, 2]] * 6
    assert len(built) == 1


def test_a_table_that_changed_is_built_again_and_the_old_file_removed(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "items.txt"
    write_items(path)
    first = load_items(item_source(path), DataConfig())
    before = kept(cache)
    write_items(path, WEIGHTS[::-1])
    items._tables.clear()
    second = load_items(item_source(path), DataConfig())
    np.testing.assert_array_equal(second.weights, WEIGHTS[::-1])
    np.testing.assert_array_equal(first.weights, WEIGHTS)
    assert len(kept(cache)) == 1
    assert kept(cache) != before


def test_other_settings_are_another_table(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "items.txt"
    write_items(path)
    load_items(item_source(path), DataConfig())
    load_items(TableSource(str(path), ("item", "kind"), ":", "\t", ("", ""), False), DataConfig())
    assert len(kept(cache)) == 2


def test_a_file_that_was_cut_short_is_built_again(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "items.txt"
    write_items(path)
    load_items(item_source(path), DataConfig())
    (file,) = kept(cache)
    items._tables.clear()
    file.write_bytes(file.read_bytes()[:100])
    np.testing.assert_array_equal(load_items(item_source(path), DataConfig()).weights, WEIGHTS)
    assert len(file.read_bytes()) > 100


def test_tables_whose_source_is_gone_are_removed(cache: Path, tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        mapped._cleaned.clear()  # as of another process
        write_items(tmp_path / name)
        load_items(item_source(tmp_path / name), DataConfig())
        (tmp_path / "a.txt").unlink(missing_ok=True)
    assert len(kept(cache)) == 1


def test_without_a_cache_folder_tables_are_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    write_items(tmp_path / "items.txt")
    items._tables.clear()
    found = load_items(item_source(tmp_path / "items.txt"), DataConfig())
    np.testing.assert_array_equal(found.weights, WEIGHTS)
    assert "set XDG_CACHE_HOME" in caplog.text


def test_tables_of_other_file_systems_leave_no_file(cache: Path, tmp_path: Path) -> None:
    write_items(tmp_path / "items.txt")
    with fsspec.open("memory://mapped/items.txt", "wb") as file:
        file.write((tmp_path / "items.txt").read_bytes())
    found = load_items(item_source("memory://mapped/items.txt"), DataConfig())
    np.testing.assert_array_equal(found.weights, WEIGHTS)
    assert not found.weights.flags.writeable
    assert not kept(cache)
    assert not list(cache.glob("*.tmp"))
