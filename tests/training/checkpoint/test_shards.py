"""Tables in several files: row ranges and slices of columns, joined when they are asked for."""

from __future__ import annotations

import dataclasses
import json
import os
import resource
import shutil
import tempfile
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.errors import CheckpointError
from recgrad.training.checkpoint import (
    Snapshot,
    TableRows,
    diff_snapshots,
    read_checkpoint,
    read_table,
    verify_checkpoint,
    write_checkpoint,
)
from recgrad.training.checkpoint.manifest import shard_path


def make(rows: int, dim: int, seed: int) -> TableRows:
    rng = np.random.default_rng(seed)
    ids = np.sort(rng.choice(3 * rows + 1, rows, replace=False)).astype(np.int64)
    return TableRows(
        "t",
        3 * rows + 1,
        dim,
        ids,
        rng.standard_normal((rows, dim), dtype=np.float32),
        {
            "m": rng.standard_normal((rows, dim), dtype=np.float32),
            "t": np.array(seed),
            "v": rng.random((rows, 1), dtype=np.float32),
        },
    )


def expected(table: TableRows, rows: tuple[int, int], columns: tuple[int, int]) -> dict[str, np.ndarray]:
    """A range of a whole table, by a mask."""
    mine = (table.row_ids >= rows[0]) & (table.row_ids < rows[1])
    at = slice(*columns)
    return {
        "ids": table.row_ids[mine],
        "weights": table.weights[mine, at],
        "m": table.states["m"][mine, at],
        "v": table.states["v"][mine],
        "t": table.states["t"],
    }


def arrays(table: TableRows) -> dict[str, np.ndarray]:
    return {"ids": table.row_ids, "weights": table.weights, **table.states}


def check_equal(found: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    assert set(found) == set(wanted)
    for name, value in wanted.items():
        assert found[name].dtype == value.dtype, name
        assert np.array_equal(found[name], value), name


@st.composite
def splits(draw):
    """A table, and the parts of it that ranks might hold: slices of columns, each in groups of rows."""
    table = make(draw(st.integers(0, 30)), draw(st.integers(2, 9)), draw(st.integers(0, 9)))
    widths = []
    while sum(widths) < table.dim:
        rest = table.dim - sum(widths)
        choices = [width for width in range(2, rest + 1) if rest - width != 1]
        widths.append(draw(st.sampled_from(choices)))
    parts, first = [], 0
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    for width in widths:
        at = slice(first, first + width)
        states = {**table.states, "m": table.states["m"][:, at]}
        count = draw(st.integers(1, 3))
        owner = rng.integers(0, count, len(table.row_ids))
        if draw(st.booleans()):
            owner.sort()
        for rank in range(count):
            mine = owner == rank
            own = {name: state[mine] if state.ndim else state for name, state in states.items()}
            size = None if width == table.dim else width
            parts.append(
                TableRows(
                    "t",
                    table.num_rows,
                    table.dim,
                    table.row_ids[mine],
                    table.weights[mine, at],
                    own,
                    first,
                    size,
                )
            )
        first += width
    return table, draw(st.permutations(parts))


@settings(max_examples=120, deadline=None)
@given(split=splits(), data=st.data())
def test_any_split_reads_as_the_whole_table_and_in_any_range(split, data):
    table, parts = split
    with tempfile.TemporaryDirectory() as folder:
        path = write_checkpoint(Path(folder, "c"), Snapshot(3, {}, parts))
        snapshot = read_checkpoint(path)
        (read,) = snapshot.tables
        check_equal(arrays(read), arrays(table))
        assert (read.num_rows, read.dim, read.touched_rows) == (table.num_rows, table.dim, len(table.row_ids))
        assert (read.state_shapes, read.nbytes) == (table.state_shapes, table.nbytes)
        rows = tuple(sorted(data.draw(st.tuples(*[st.integers(0, table.num_rows + 2)] * 2))))
        start = data.draw(st.integers(0, table.dim - 1))
        columns = start, data.draw(st.integers(start + 1, table.dim))
        for source in (path, snapshot):
            part = read_table(source, "t", rows=rows, columns=columns)
            check_equal(arrays(part), expected(table, rows, columns))
            assert (part.first_column, part.width) == (columns[0], columns[1] - columns[0])
        assert read.count(rows) == len(part.row_ids)
        pieces = list(read.pieces(rows, max_rows=data.draw(st.integers(1, 8))))
        joined = {
            name: np.concatenate([arrays(piece)[name] for piece in pieces])
            for name in ("ids", "weights", "m", "v")
        }
        check_equal({**joined, "t": pieces[0].states["t"]}, expected(table, rows, (0, table.dim)))
        assert all(item.equal for item in diff_snapshots(snapshot, Snapshot(3, {}, [table])))


def test_a_part_of_what_was_read_can_be_written_again(tmp_path, make_table, cut):
    table = make_table(dim=8)
    path = write_checkpoint(tmp_path / "a", Snapshot(1, {}, cut.column_wise(table, [0, 3, 8])))
    slices = [read_table(path, "user", columns=columns) for columns in ((0, 2), (2, 4), (4, 8))]
    again = read_checkpoint(write_checkpoint(tmp_path / "b", Snapshot(1, {}, slices)))
    check_equal(arrays(again.tables[0]), arrays(table))


def test_pieces_are_no_larger_than_asked_and_there_is_always_one(make_table):
    table = make_table(rows=50)
    sizes = [len(piece.row_ids) for piece in table.pieces(max_rows=20)]
    assert sizes == [20, 20, 10]
    (none,) = table.pieces((0, 0))
    assert len(none.row_ids) == 0
    assert none.states["t"] == 17


@pytest.mark.parametrize(
    ("rows", "columns"), [((-1, 3), None), ((4, 3), None), (None, (0, 5)), (None, (2, 2)), (None, (-1, 2))]
)
@pytest.mark.parametrize("sharded", [False, True])
def test_ranges_that_are_none_are_refused(tmp_path, make_table, cut, rows, columns, sharded):
    table = make_table(dim=4)
    parts = cut.row_wise(table, 2) if sharded else [table]
    path = write_checkpoint(tmp_path / "c", Snapshot(1, {}, parts))
    with pytest.raises(ValueError, match="must be"):
        read_table(path, "user", rows=rows, columns=columns)


def test_a_table_that_is_not_there_is_named_with_the_nearest(tmp_path, make_table):
    path = write_checkpoint(tmp_path / "c", Snapshot(1, {}, [make_table("user_id")]))
    for source in (path, read_checkpoint(path)):
        with pytest.raises(CheckpointError, match="has no table 'user_di'; did you mean 'user_id'"):
            read_table(source, "user_di")


def test_one_table_is_read_though_another_is_damaged(tmp_path, make_table):
    path = write_checkpoint(tmp_path / "c", Snapshot(1, {}, [make_table("a"), make_table("b")]))
    damaged = path / shard_path("b", 0, 1)
    content = bytearray(damaged.read_bytes())
    content[-1] ^= 1
    damaged.write_bytes(content)
    check_equal(arrays(read_table(path, "a", verify=True)), arrays(make_table("a")))
    with pytest.raises(CheckpointError, match=r"b/00000-of-00001\.safetensors: is damaged"):
        read_table(path, "b", verify=True)


def test_more_shards_than_a_process_may_have_open_files(tmp_path, make_table, cut):
    """Hundreds of ranks: the files of a table cannot all be open, or mapped, at a time."""
    table = make_table(rows=400, dim=4)
    path = write_checkpoint(tmp_path / "c", Snapshot(1, {}, cut.row_wise(table, 150)))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 30, hard))
    try:
        (read,) = read_checkpoint(path).tables
        check_equal(arrays(read), arrays(table))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_range_of_one_file_is_mapped_and_not_copied(tmp_path, make_table, cut):
    table = make_table(rows=60, dim=4)
    path = write_checkpoint(tmp_path / "c", Snapshot(1, {}, cut.row_wise(table, 3)))
    part = read_table(path, "user", rows=(0, table.num_rows // 3))
    assert not part.weights.flags.owndata
    assert not part.states["m"].flags.owndata


def test_a_range_costs_the_memory_of_the_range(tmp_path, cut):
    table = make(200_000, 32, 0)
    path = write_checkpoint(tmp_path / "c", Snapshot(1, {}, cut.column_wise(table, [0, 16, 32])))
    tracemalloc.start()
    try:
        part = read_table(path, "t", rows=(100_000, 106_000), columns=(12, 20))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    check_equal(arrays(part), expected(table, (100_000, 106_000), (12, 20)))
    # The check of the row ids looks at a piece of them at a time; weights and states are far more.
    assert peak < table.nbytes / 6


def replaced(table: TableRows, **changes) -> TableRows:
    return dataclasses.replace(table, **changes)


def without_last_row(table: TableRows) -> TableRows:
    return table.part((0, int(table.row_ids[-1])))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda a, b: [a], "its slices have 4 columns, the table has 8"),
        (lambda a, b: [b], r"has no columns 0 … 3"),
        (lambda a, b: [a, b, b], "is in two shards"),
        (lambda a, b: [a, replaced(b, first_column=2)], "has column 2 twice"),
        (lambda a, b: [a, replaced(b, first_column=6)], r"columns 6 … 9 are not in 0 … 7"),
        (lambda a, b: [a, without_last_row(b)], r"… 3 and columns 4 … 7 have different rows \(50 and 49\)"),
        (lambda a, b: [a, replaced(b, row_ids=shifted(b))], "have different rows"),
        (lambda a, b: [a, replaced(b, states={**b.states, "t": np.array(18)})], "disagree on state 't'"),
        (lambda a, b: [a, replaced(b, states={**b.states, "v": b.states["v"] * 2})], "disagree on state 'v'"),
        (lambda a, b: [a, replaced(b, states={})], r"disagree on state 'm' \(float32 \[8\], absent\)"),
        (lambda a, b: [a, replaced(b, weights=b.weights.astype(np.float64))], "disagree on weights"),
        (lambda a, b: [a, replaced(b, num_rows=501)], "shards of different tables"),
        (lambda a, b: [a, replaced(b, states={"w": np.zeros((50, 3))})], "must have width 1 or 4, got 3"),
    ],
    ids=range(13),
)  # fmt: skip
def test_parts_that_are_not_one_table_are_not_written(tmp_path, make_table, cut, change, message):
    parts = change(*cut.column_wise(make_table(dim=8), [0, 4, 8]))
    with pytest.raises(CheckpointError, match=message):
        write_checkpoint(tmp_path / "c", Snapshot(1, {}, parts))
    assert os.listdir(tmp_path) == []


def shifted(table: TableRows) -> np.ndarray:
    """As many row ids, one of them another."""
    ids = table.row_ids.copy()
    ids[-1] += 1
    return ids


def test_slices_of_one_column_have_states_of_the_column(tmp_path, make_table, cut):
    table = make_table(dim=3)
    table = replaced(table, states={name: table.states[name] for name in ("m", "t")})
    for bounds in ([0, 2, 3], [0, 1, 2, 3]):
        path = write_checkpoint(tmp_path / "c", Snapshot(1, {}, cut.column_wise(table, bounds)))
        check_equal(arrays(read_checkpoint(path).tables[0]), arrays(table))
        assert np.array_equal(read_table(path, "user", columns=(1, 3)).states["m"], table.states["m"][:, 1:])


def test_a_slice_of_one_column_cannot_have_a_state_of_whole_rows(tmp_path, make_table, cut):
    """Nothing tells it from a state of the column."""
    with pytest.raises(CheckpointError, match=r"disagree on state 'v' \(float32 \[1\], float32 \[3\]\)"):
        write_checkpoint(tmp_path / "c", Snapshot(1, {}, cut.column_wise(make_table(dim=3), [0, 2, 3])))


def reseal(folder: Path) -> None:
    """Make sizes and checksums true again."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    for name, entry in manifest["files"].items():
        content = (folder / name).read_bytes()
        entry |= {"bytes": len(content), "crc32": f"{zlib.crc32(content):08x}"}
    write_manifest(folder, manifest)


def write_manifest(folder: Path, manifest) -> None:
    manifest.pop("crc32", None)
    rest = json.dumps(manifest, indent=2).encode().removeprefix(b"{\n")
    (folder / "manifest.json").write_bytes(b'{\n  "crc32": "%08x",\n' % zlib.crc32(rest) + rest)


@pytest.fixture
def sliced(tmp_path, make_table, cut):
    """A checkpoint of two slices, and a function that puts the second one of another there instead."""
    table = make_table(dim=8)
    path = write_checkpoint(tmp_path / "c", Snapshot(1, {}, cut.column_wise(table, [0, 4, 8])))

    def swap(other: TableRows) -> Path:
        elsewhere = write_checkpoint(tmp_path / "other", Snapshot(1, {}, cut.column_wise(other, [0, 4, 8])))
        shutil.copy(elsewhere / shard_path("user", 1, 2), path / shard_path("user", 1, 2))
        reseal(path)
        return path

    return table, swap


def test_slices_with_other_rows_are_refused_as_damaged(sliced):
    table, swap = sliced
    with pytest.raises(CheckpointError, match=r"user.*is damaged: its slices of .* different rows"):
        read_checkpoint(swap(replaced(table, row_ids=shifted(table))))


def test_slices_with_fewer_rows_are_refused_as_damaged(sliced):
    table, swap = sliced
    with pytest.raises(CheckpointError, match=r"user.*is damaged: its slices of .* different rows"):
        read_checkpoint(swap(without_last_row(table)))


def test_slices_that_disagree_on_a_row_s_state_are_refused_as_damaged(sliced):
    table, swap = sliced
    other = replaced(table, states={**table.states, "v": table.states["v"] + 1})
    (read,) = read_checkpoint(swap(other)).tables
    with pytest.raises(CheckpointError, match=r"00001-of-00002.* is damaged: disagrees .* on state 'v'"):
        read.part()


@pytest.mark.parametrize(
    "columns",
    [None, [], [[0, 4]], [[0, 4], [4]], [[0, 4], [4, -4]], [[0, 4], [4, 4.0]], [[0, 4], [4, 5]],
     [[4, 4], [0, 4]], [[0, 4], [0, 4]], [[0, 8], [0, 8]], "ab", [[0, 2**70], [4, 4]]],
    ids=str,
)  # fmt: skip
def test_columns_that_do_not_fit_the_files_are_refused(tmp_path, make_table, cut, columns):
    table = make_table(dim=8)
    path = write_checkpoint(tmp_path / "c", Snapshot(1, {}, cut.column_wise(table, [0, 4, 8])))
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["tables"][0]["columns"] = columns
    write_manifest(path, manifest)
    with pytest.raises(CheckpointError, match=r"columns|is not of the table"):
        read_checkpoint(path)


def test_only_slices_of_columns_raise_the_format_version(tmp_path, make_table, cut):
    table = make_table(dim=8)

    def version(parts):
        path = write_checkpoint(tmp_path / "c", Snapshot(1, {}, parts))
        return json.loads((path / "manifest.json").read_text())["format_version"]

    assert version([table]) == 1
    assert version(cut.row_wise(table, 3)) == 1
    assert version(cut.column_wise(table, [0, 8])) == 1
    assert version(cut.column_wise(table, [0, 4, 8])) == 2


def test_the_bytes_of_a_checkpoint_of_one_process(tmp_path):
    """Names and checksums as the first release wrote them."""
    weights = np.arange(12, dtype=np.float32).reshape(3, 4)
    ids = np.array([1, 4, 9])
    states = {"m": weights + 1, "v": weights[:, :1], "t": np.array(17)}
    tables = [
        TableRows("user id", 10, 4, ids, weights, states),
        TableRows("empty", 5, 2, ids[:0], np.empty((0, 2), np.float16)),
    ]
    tree = {"model": {"a": torch.arange(3.0)}, "state": {"best": float("-inf"), "n": (1, 2)}}
    path = write_checkpoint(tmp_path / "c", Snapshot(7, tree, tables))
    empty, user = "tables/empty/00000-of-00001.safetensors", "tables/user%20id/00000-of-00001.safetensors"
    manifest = json.loads((path / "manifest.json").read_text())
    assert list(manifest) == ["crc32", "format", "format_version", "step", "versions", "tables", "files"]
    del manifest["crc32"], manifest["versions"]
    assert manifest == {
        "format": "recgrad-checkpoint",
        "format_version": 1,
        "step": 7,
        "tables": [
            {"name": "user id", "num_rows": 10, "dim": 4, "touched_rows": 3, "shards": [user]},
            {"name": "empty", "num_rows": 5, "dim": 2, "touched_rows": 0, "shards": [empty]},
        ],
        "files": {
            empty: {"bytes": 192, "crc32": "8a89adcf"},
            user: {"bytes": 524, "crc32": "0710d2bf"},
            "tree.json": {"bytes": 105, "crc32": "a02478dc"},
            "tree.safetensors": {"bytes": 140, "crc32": "6224aae4"},
        },
    }
    assert verify_checkpoint(path).step == 7
