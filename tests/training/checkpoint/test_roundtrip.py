"""What goes into a checkpoint comes out, bit for bit."""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from recgrad.errors import CheckpointError
from recgrad.training.checkpoint import (
    Snapshot,
    TableRows,
    read_checkpoint,
    verify_checkpoint,
    write_checkpoint,
)
from recgrad.training.checkpoint.files import FileRecord
from recgrad.training.checkpoint.folder import write_manifest, write_tree
from recgrad.training.checkpoint.manifest import TableEntry, shard_path
from recgrad.training.checkpoint.shards import write_rows
from recgrad.training.checkpoint.staging import staged_folder

TORCH_TYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
    torch.complex64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16,
    torch.uint32, torch.uint64, torch.bool,
]  # fmt: skip


def keys():
    return (
        st.text(max_size=8) | st.integers() | st.sampled_from(["$tensor", "$dict", "a/b", "__metadata__", ""])
    )


def arrays():
    kinds = (
        hnp.floating_dtypes(sizes=(16, 32, 64), endianness="<")
        | hnp.integer_dtypes(endianness="<")
        | hnp.unsigned_integer_dtypes(endianness="<")
        | hnp.boolean_dtypes()
    )
    return hnp.arrays(kinds, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))


def leaves():
    return (
        st.none()
        | st.booleans()
        | st.integers()
        | st.integers(min_value=2**60, max_value=2**90)
        | st.floats(allow_nan=True, allow_infinity=True)
        | st.text(st.characters(), max_size=10)
        | st.binary(max_size=10)
        | arrays()
        | arrays().filter(lambda array: array.dtype.kind != "u").map(torch.from_numpy)
        | st.sampled_from([np.float32(-0.0), np.int64(3), np.bool_(True), np.float64("nan")])
    )


def trees():
    nested = st.recursive(
        leaves(),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(keys(), inner, max_size=4)
        ),
        max_leaves=12,
    )
    return st.dictionaries(st.text(max_size=6), nested, max_size=4)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees())
def test_any_tree_comes_back_bit_for_bit(tree, tmp_path, same):
    snapshot = read_checkpoint(write_checkpoint(tmp_path / "c", Snapshot(3, tree)))
    assert snapshot.step == 3
    assert same(tree, snapshot.tree)


@pytest.mark.parametrize("dtype", TORCH_TYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (5,), (2, 3, 4)], ids=str)
def test_tensors_of_every_type_and_shape(tmp_path, same, dtype, shape):
    count = math.prod(shape) * torch.empty((), dtype=dtype).element_size()
    raw = torch.randint(0, 2 if dtype == torch.bool else 256, (count,), dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(shape)
    snapshot = read_checkpoint(write_checkpoint(tmp_path / "c", Snapshot(0, {"t": tensor})))
    assert same(tensor, snapshot.tree["t"])


def test_strided_big_endian_and_parameter_values_come_back_as_plain_ones(tmp_path):
    base = torch.arange(12.0).reshape(3, 4)
    parameter = torch.nn.Parameter(torch.ones(2))
    big = np.arange(3, dtype=">f8")
    tree = read_checkpoint(
        write_checkpoint(
            tmp_path / "c", Snapshot(0, {"t": base.T, "s": base[:, ::2], "p": parameter, "b": big})
        )
    ).tree
    assert tree["t"].equal(base.T)
    assert tree["s"].equal(base[:, ::2])
    assert tree["p"].equal(parameter.detach())
    assert not tree["p"].requires_grad
    assert tree["b"].tolist() == [0.0, 1.0, 2.0]


def test_an_int_of_many_thousand_digits(tmp_path):
    huge = -(7**20_000)
    if hasattr(sys, "get_int_max_str_digits"):
        assert sys.get_int_max_str_digits() < 16_000
    assert read_checkpoint(write_checkpoint(tmp_path / "c", Snapshot(0, {"n": huge}))).tree["n"] == huge


def test_tables_come_back_bit_for_bit_and_mapped(tmp_path, make_snapshot, same):
    snapshot = make_snapshot()
    read = read_checkpoint(write_checkpoint(tmp_path / "c", snapshot))
    assert [table.name for table in read.tables] == ["user", "item"]
    for before, after in zip(snapshot.tables, read.tables):
        assert (before.num_rows, before.dim) == (after.num_rows, after.dim)
        assert same(before.row_ids, after.row_ids)
        assert same(before.weights, after.weights)
        assert same(dict(before.states), dict(after.states))
        assert not after.weights.flags.owndata
        assert after.weights.ctypes.data % 4 == 0


def test_writing_to_a_read_array_leaves_the_file_alone(tmp_path, make_snapshot):
    path = write_checkpoint(tmp_path / "c", make_snapshot())
    first = read_checkpoint(path)
    first.tables[0].weights[:] = 0
    first.tree["model"]["dense.weight"].zero_()
    assert verify_checkpoint(path).step == 7
    assert read_checkpoint(path).tables[0].weights.any()


@pytest.mark.parametrize(
    "name", ["..", ".", "a/../../b", "über\n", "", "x" * 500, "a.b-c_d", "%2E", "tab le"]
)
def test_tables_of_any_name(tmp_path, make_table, name):
    snapshot = Snapshot(1, {}, [make_table(name), make_table("other")])
    path = write_checkpoint(tmp_path / "c", snapshot)
    assert [table.name for table in read_checkpoint(path).tables] == [name, "other"]
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["c"]


def test_an_empty_table_and_an_empty_tree(tmp_path):
    empty = TableRows(
        "t", 10**12, 3, np.empty(0, np.int64), np.empty((0, 3), np.float32), {"m": np.empty((0, 0))}
    )
    read = read_checkpoint(write_checkpoint(tmp_path / "c", Snapshot(0, {}, [empty])))
    assert read.tree == {}
    assert read.tables[0].weights.shape == (0, 3)
    assert read.tables[0].states["m"].shape == (0, 0)


def test_the_same_snapshot_gives_the_same_bytes(tmp_path, make_snapshot):
    first = write_checkpoint(tmp_path / "a", make_snapshot())
    second = write_checkpoint(tmp_path / "b", make_snapshot())
    names = sorted(path.relative_to(first) for path in first.rglob("*") if path.is_file())
    assert names == sorted(path.relative_to(second) for path in second.rglob("*") if path.is_file())
    assert all((first / name).read_bytes() == (second / name).read_bytes() for name in names)


def test_array_files_open_with_the_safetensors_library(tmp_path, make_snapshot):
    safetensors = pytest.importorskip("safetensors.torch")
    snapshot = make_snapshot()
    path = write_checkpoint(tmp_path / "c", snapshot)
    tensors = safetensors.load_file(path / "tree.safetensors")
    assert tensors["model/dense.weight"].equal(snapshot.tree["model"]["dense.weight"])
    assert tensors["model/half"].dtype == torch.bfloat16
    rows = safetensors.load_file(path / shard_path("user", 0, 1))
    assert np.array_equal(rows["row_ids"].numpy(), snapshot.tables[0].row_ids)
    assert np.array_equal(rows["weights"].numpy(), snapshot.tables[0].weights)


def split(table: TableRows, owner: np.ndarray, rank: int) -> TableRows:
    mine = owner == rank
    states = {name: state[mine] if state.ndim else state for name, state in table.states.items()}
    return TableRows(table.name, table.num_rows, table.dim, table.row_ids[mine], table.weights[mine], states)


def write_shard(folder: Path, table: TableRows, shard: int, num_shards: int) -> FileRecord:
    return write_rows(folder, shard_path(table.name, shard, num_shards), table)


def write_sharded(path: Path, table: TableRows, owner: np.ndarray, num_shards: int) -> Path:
    with staged_folder(path) as folder:
        files = write_tree(folder, Snapshot(2, {}))
        shards = [write_shard(folder, split(table, owner, r), r, num_shards) for r in range(num_shards)]
        entry = TableEntry(table.name, table.num_rows, table.dim, len(owner), tuple(s.path for s in shards))
        write_manifest(folder, Snapshot(2, {}), files + shards, [entry])
    return path


@pytest.mark.parametrize("num_shards", [1, 2, 5])
def test_shards_of_a_table_are_merged_by_row_id(tmp_path, make_table, same, num_shards):
    table = make_table()
    owner = np.random.default_rng(1).integers(0, num_shards, len(table.row_ids))
    (read,) = read_checkpoint(write_sharded(tmp_path / "c", table, owner, num_shards)).tables
    assert same(read.row_ids, table.row_ids)
    assert same(read.weights, table.weights)
    assert same(dict(read.states), dict(table.states))


def test_shards_that_disagree_on_a_scalar_are_refused(tmp_path, make_table):
    first, second = make_table(rows=5), make_table(rows=5, seed=3)
    second = dataclasses.replace(second, states={**second.states, "t": np.array(18)})
    with staged_folder(tmp_path / "c") as folder:
        files = write_tree(folder, Snapshot(2, {}))
        shards = [write_shard(folder, table, rank, 2) for rank, table in enumerate((first, second))]
        entry = TableEntry("user", first.num_rows, first.dim, 10, tuple(s.path for s in shards))
        write_manifest(folder, Snapshot(2, {}), files + shards, [entry])
    with pytest.raises(CheckpointError, match="the shards disagree on state 't'"):
        read_checkpoint(tmp_path / "c")


def test_a_row_in_two_shards_is_refused(tmp_path, make_table):
    table = make_table()
    with staged_folder(tmp_path / "c") as folder:
        files = write_tree(folder, Snapshot(2, {}))
        shards = [write_shard(folder, table, rank, 2) for rank in range(2)]
        entry = TableEntry(table.name, table.num_rows, table.dim, 100, tuple(s.path for s in shards))
        write_manifest(folder, Snapshot(2, {}), files + shards, [entry])
    with pytest.raises(CheckpointError, match="strictly ascending"):
        read_checkpoint(tmp_path / "c")


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"a": {"b": {1, 2}}}, "a/b: a set cannot be stored"),
        ({"a": object()}, "a: a object cannot"),
        ({"a": np.array(["x"])}, "a: arrays of dtype <U1"),
        ({"a": np.array([object()])}, "a: arrays of dtype object"),
        ({"a": torch.ones(2).to_sparse()}, "a: tensors of torch.float32, torch.sparse_coo"),
        ({"a": {(1, 2): 3}}, "a: a key of type tuple"),
    ],
    ids=["set", "object", "texts", "objects", "sparse", "tuple key"],
)
def test_values_that_cannot_be_stored_are_named(tmp_path, tree, message):
    with pytest.raises(CheckpointError, match=message):
        write_checkpoint(tmp_path / "c", Snapshot(0, tree))
    assert list(tmp_path.iterdir()) == []


def test_a_tree_that_holds_itself_is_refused(tmp_path):
    loop: list = []
    loop.append(loop)
    with pytest.raises(CheckpointError, match="nests deeper"):
        write_checkpoint(tmp_path / "c", Snapshot(0, {"a": loop}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"row_ids": np.array([2, 1, 3])}, "strictly ascending"),
        ({"row_ids": np.array([1, 2, 2])}, "strictly ascending"),
        ({"row_ids": np.array([1, 2, 10])}, "0 … 9, got 1 … 10"),
        ({"row_ids": np.array([-1, 2, 3])}, "0 … 9, got -1 … 3"),
        ({"row_ids": np.array([1, 2, 3], np.int32)}, "int64"),
        ({"weights": np.zeros((3, 3))}, r"weights must be \[3, 2\], got \[3, 3\]"),
        ({"states": {"m": np.zeros((2, 2))}}, r"state 'm' must be \[3, width\]"),
        ({"states": {"m": np.zeros(3)}}, r"state 'm' must be \[3, width\] or a scalar, got \[3\]"),
    ],
    ids=str,
)
def test_tables_that_do_not_fit_are_refused(tmp_path, change, message):
    parts = {"row_ids": np.arange(3), "weights": np.zeros((3, 2)), "states": {}} | change
    with pytest.raises(CheckpointError, match=message):
        write_checkpoint(tmp_path / "c", Snapshot(0, {}, [TableRows("t", 10, 2, **parts)]))


def test_a_table_twice_is_refused(tmp_path, make_table):
    with pytest.raises(CheckpointError):
        write_checkpoint(tmp_path / "c", Snapshot(0, {}, [make_table("t"), make_table("t")]))
    assert list(tmp_path.iterdir()) == []


def test_the_manifest_is_json_with_step_versions_sizes_and_checksums(tmp_path, make_snapshot):
    path = write_checkpoint(tmp_path / "c", make_snapshot())
    manifest = json.loads((path / "manifest.json").read_text())
    assert manifest["step"] == 7
    assert manifest["format_version"] == 1
    packages = {"torch", "numpy", "numba", "llvmlite", "pyarrow", "torchmetrics"}
    assert set(manifest["versions"]) == {"recgrad", "python"} | packages
    on_disk = {str(f.relative_to(path)): f.stat().st_size for f in path.rglob("*") if f.is_file()}
    del on_disk["manifest.json"]
    assert {name: entry["bytes"] for name, entry in manifest["files"].items()} == on_disk
