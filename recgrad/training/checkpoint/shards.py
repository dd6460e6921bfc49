"""A shard: some rows of a table, or some columns of them, in one file.

Below are its file, written and opened, and its description: what is known of a shard before it is
joined with others, and whether they make a whole table. The process that publishes a checkpoint must
not read the rows that others wrote. Each writer describes its shards in a few numbers that are enough
to see that no row and no column is there twice, none is missing in one slice, and all agree on what
they share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.errors import CheckpointError
from recgrad.training.checkpoint.arrays import ArrayFile, RawArray, read_array_file, write_array_file
from recgrad.training.checkpoint.files import FileRecord, require
from recgrad.training.checkpoint.manifest import TableEntry
from recgrad.training.checkpoint.snapshot import AnyArray, TableRows

_STATE_PREFIX = "state."
_CHUNK = 1 << 18


def write_rows(folder: Path, path: str, table: TableRows) -> FileRecord:
    """Write rows of a table to the file `folder/path`."""
    problem = table.problem()
    if problem is not None:
        raise CheckpointError(f"table '{table.name}': {problem}")
    (folder / path).parent.mkdir(parents=True, exist_ok=True)
    arrays = {"row_ids": RawArray.of_numpy(table.row_ids), "weights": RawArray.of_numpy(table.weights)}
    for name, state in table.states.items():
        arrays[_STATE_PREFIX + name] = RawArray.of_numpy(state)
    columns = (table.first_column, table.width) if table.is_slice else None
    return write_array_file(folder, path, arrays, _metadata(table.name, table.num_rows, table.dim, columns))


def open_shard(path: Path, entry: TableEntry, columns: tuple[int, int]) -> TableRows:
    """The rows of a shard, mapped into memory; raises unless the file is the one that the entry says."""
    file = read_array_file(path)
    _check_shard(path, entry, columns, file)
    states = {
        name.removeprefix(_STATE_PREFIX): array.numpy()
        for name, array in sorted(file.arrays.items())
        if name.startswith(_STATE_PREFIX)
    }
    return TableRows(
        entry.name,
        entry.num_rows,
        entry.dim,
        file.arrays["row_ids"].numpy(),
        file.arrays["weights"].numpy(),
        states,
        columns[0],
        None if columns == (0, entry.dim) else columns[1],
    )


def _check_shard(path: Path, entry: TableEntry, columns: tuple[int, int], file: ArrayFile) -> None:
    whole = columns == (0, entry.dim)
    expected = _metadata(entry.name, entry.num_rows, entry.dim, None if whole else columns)
    require(file.metadata == expected, path, f"is not of the table that the manifest says: {expected}")
    require("row_ids" in file.arrays and "weights" in file.arrays, path, "has no row_ids or no weights")
    for name in file.arrays:
        require(
            name in ("row_ids", "weights") or name.startswith(_STATE_PREFIX),
            path,
            f"unknown array {name[:200]!r}",
        )


def _metadata(name: str, num_rows: int, dim: int, columns: tuple[int, int] | None) -> dict[str, str]:
    """What a shard's file says of itself; `columns` are the first and the number of a slice."""
    metadata = {"table": name, "num_rows": str(num_rows), "dim": str(dim)}
    if columns is not None:
        metadata |= {"first_column": str(columns[0]), "columns": str(columns[1])}
    return metadata


@dataclass(frozen=True)
class Shard:
    """A written shard.

    Attributes:
        table: name of its table.
        num_rows: the table's height.
        dim: the table's width.
        first_column: where the shard's columns begin.
        columns: how many it has.
        touched_rows: rows in the shard.
        first_row: lowest row id; -1 without rows.
        last_row: highest row id; -1 without rows.
        rows_hash: of the set of row ids; the hashes of disjoint sets add up.
        arrays: what all shards must have alike, by name of the array: its type, its width (dim
            for one that is cut with the columns) and the value of a scalar.
        row_hashes: of a slice, by name of a state of whole rows: its values; they add up, too.
        file: where it was written.
    """

    table: str
    num_rows: int
    dim: int
    first_column: int
    columns: int
    touched_rows: int
    first_row: int
    last_row: int
    rows_hash: int
    arrays: Mapping[str, str]
    row_hashes: Mapping[str, int]
    file: FileRecord

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)

    @staticmethod
    def of_json(value: Mapping[str, Any]) -> Shard:
        """What `to_json` gave."""
        return Shard(**{**value, "file": FileRecord(**value["file"])})


def describe_shard(rows: TableRows, file: FileRecord) -> Shard:
    """The description of rows that were written to a file."""
    ids = rows.row_ids
    arrays = {"weights": f"{rows.weights.dtype} [{rows.dim}]"}
    row_hashes = {}
    for name, state in rows.states.items():
        if state.ndim == 0:
            arrays[f"state '{name}'"] = f"{state.dtype} {state.tobytes().hex()}"
            continue
        wide = rows.is_wide(name)
        arrays[f"state '{name}'"] = f"{state.dtype} [{rows.dim if wide else state.shape[1]}]"
        if rows.is_slice and not wide:
            row_hashes[name] = _hash(ids, state)
    return Shard(
        table=rows.name,
        num_rows=rows.num_rows,
        dim=rows.dim,
        first_column=rows.first_column,
        columns=rows.width,
        touched_rows=len(ids),
        first_row=int(ids[0]) if len(ids) else -1,
        last_row=int(ids[-1]) if len(ids) else -1,
        rows_hash=_hash(ids) if rows.is_slice else 0,
        arrays=arrays,
        row_hashes=row_hashes,
        file=file,
    )


def read_row_ids(folder: Path, shard: Shard) -> npt.NDArray[np.int64]:
    """The row ids of a shard that was written below `folder`."""
    return read_array_file(folder / shard.file.path).arrays["row_ids"].numpy()


def by_table(shards: Iterable[Shard]) -> dict[str, list[Shard]]:
    """The shards of each table, tables in the order of their first shards."""
    found: dict[str, list[Shard]] = {}
    for shard in shards:
        found.setdefault(shard.table, []).append(shard)
    return found


def join_shards(
    shards: Sequence[Shard], read_ids: Callable[[Shard], npt.NDArray[np.int64]]
) -> tuple[list[Shard], TableEntry]:
    """The shards of one table in their order, and the table's entry, with the paths as they are.

    Args:
        shards: all of the table.
        read_ids: reads row ids; asked only about shards whose rows lie in between each other's.

    Raises:
        CheckpointError: they are not one whole table; says how.
    """
    first = shards[0]
    where = f"table '{first.table}'"
    for shard in shards:
        _check_alike(where, first, shard)
    ordered = sorted(shards, key=lambda shard: (shard.first_column, shard.first_row, shard.last_row))
    groups = _column_groups(where, ordered)
    for group in groups:
        _check_rows_once(where, group, read_ids)
    for group in groups[1:]:
        _check_same_rows(where, groups[0], group)
    entry = TableEntry(
        first.table,
        first.num_rows,
        first.dim,
        sum(shard.touched_rows for shard in groups[0]),
        tuple(shard.file.path for shard in ordered),
        tuple((shard.first_column, shard.columns) for shard in ordered) if len(groups) > 1 else (),
    )
    return ordered, entry


def check_column_ranges(where: str, dim: int, ranges: Sequence[tuple[int, int]]) -> None:
    """Raise unless ranges (first column, number of columns), ascending, are all of `dim`, each once."""
    stop = 0
    for first, count in ranges:
        if first != stop:
            problem = f"has no columns {stop} … {first - 1}" if first > stop else f"has column {first} twice"
            raise CheckpointError(f"{where}: {problem}")
        stop = first + count
    if stop != dim:
        raise CheckpointError(f"{where}: its slices have {stop} columns, the table has {dim}")


def _check_alike(where: str, first: Shard, shard: Shard) -> None:
    sizes = (first.num_rows, first.dim), (shard.num_rows, shard.dim)
    if sizes[0] != sizes[1]:
        raise CheckpointError(
            f"{where}: shards of different tables, {sizes[0]} and {sizes[1]} rows and columns"
        )
    for name in sorted(first.arrays.keys() | shard.arrays.keys()):
        values = first.arrays.get(name), shard.arrays.get(name)
        if values[0] != values[1]:
            raise CheckpointError(
                f"{where}: the shards disagree on {name} ({values[0] or 'absent'}, {values[1] or 'absent'})"
            )


def _column_groups(where: str, ordered: Sequence[Shard]) -> list[list[Shard]]:
    """Shards of the same columns together."""
    groups: dict[tuple[int, int], list[Shard]] = {}
    for shard in ordered:
        groups.setdefault((shard.first_column, shard.columns), []).append(shard)
    check_column_ranges(where, ordered[0].dim, sorted(groups))
    return [groups[key] for key in sorted(groups)]


def _check_rows_once(
    where: str, group: Sequence[Shard], read_ids: Callable[[Shard], npt.NDArray[np.int64]]
) -> None:
    filled = [shard for shard in group if shard.touched_rows]
    if all(before.last_row < after.first_row for before, after in pairwise(filled)):
        return
    ids = np.concatenate([read_ids(shard) for shard in filled])
    ids.sort()
    again = np.flatnonzero(ids[1:] == ids[:-1])
    if len(again):
        raise CheckpointError(f"{where}: row {ids[again[0]]} is in two shards")


def _check_same_rows(where: str, first: Sequence[Shard], other: Sequence[Shard]) -> None:
    columns = [f"{g[0].first_column} … {g[0].first_column + g[0].columns - 1}" for g in (first, other)]
    slices = f"columns {columns[0]} and columns {columns[1]}"
    counts = [sum(shard.touched_rows for shard in group) for group in (first, other)]
    hashes = [_total(shard.rows_hash for shard in group) for group in (first, other)]
    if counts[0] != counts[1] or hashes[0] != hashes[1]:
        raise CheckpointError(f"{where}: {slices} have different rows ({counts[0]} and {counts[1]})")
    for name in first[0].row_hashes:
        values = [_total(shard.row_hashes[name] for shard in group) for group in (first, other)]
        if values[0] != values[1]:
            raise CheckpointError(
                f"{where}: {slices} disagree on state '{name}', of which a row has only one value"
            )


def _total(hashes: Iterable[int]) -> int:
    return sum(hashes) % (1 << 64)


def _hash(ids: npt.NDArray[np.int64], values: AnyArray | None = None) -> int:
    """Sum over rows of a mix of the row's id and, if given, the bits of its value [n, 1]."""
    total = 0
    for start in range(0, len(ids), _CHUNK):
        mixed = _mix(ids[start : start + _CHUNK].astype(np.uint64))
        if values is not None:
            chunk = np.ascontiguousarray(values[start : start + _CHUNK, 0])
            mixed = _mix(mixed ^ chunk.view(f"<u{chunk.itemsize}").astype(np.uint64))
        total += int(mixed.sum(dtype=np.uint64))
    return total % (1 << 64)


def _mix(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64: every bit of the input moves half of the output's."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
