"""`recgrad codes`: from predicted codes to a table of items that other models take as features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recgrad.errors import RecgradError, nearest, whole_path
from recgrad.retrieval.codes import CodeReport, Codes, measure_codes, spread, tokens


@dataclass(frozen=True)
class ItemCodes:
    """The ids of items.

    Attributes:
        items: ids of items as the data have them.
        codes: [items, levels].
        sizes: codes of each level.
        left: items of ids that have more than they may.
    """

    items: pa.Array
    codes: Codes
    sizes: tuple[int, ...]
    left: int = 0

    def report(self) -> CodeReport:
        """What they are worth."""
        return measure_codes(self.codes, self.sizes)

    def table(self, item_field: str) -> pa.Table:
        """An item a row: `codes`, `code_1` and so on, `sid` as text, and `tokens`."""
        columns = {item_field: self.items, "codes": _lists(self.codes)}
        for level in range(self.codes.shape[1]):
            columns[f"code_{level + 1}"] = pa.array(self.codes[:, level])
        texts = ["_".join(map(str, row)) for row in self.codes.tolist()]
        columns |= {"sid": pa.array(texts), "tokens": _lists(tokens(self.codes, self.sizes))}
        return pa.table(columns)


def read_codes(
    path: str | Path, *, item_field: str, codebook: Sequence[int] = (), most: int = 0
) -> ItemCodes:
    """The ids in a file of predictions; with `most`, no more items each, as far as candidates reach.

    Args:
        path: a parquet file with the column of items, `codes` and, for `most`, `candidate_codes`.
        item_field: the column of items.
        codebook: codes of each level; the largest of the file where it is left out.
        most: items of an id; 0 for any number.
    """
    table = _read(path)
    needed = [item_field, "codes", *(["candidate_codes"] if most else [])]
    for name in needed:
        if name not in table.column_names:
            remedy = (
                "; set candidate_output_config { enabled: true } in the model"
                if name == "candidate_codes"
                else nearest(name, table.column_names)
            )
            raise RecgradError(f"codes: '{path}' has no column '{name}'{remedy}")
    if not table.num_rows:
        raise RecgradError(f"codes: '{path}' has no rows")
    codes = _matrix(table, "codes", path)
    sizes = tuple(codebook) or tuple(int(size) for size in codes.max(axis=0) + 1)
    if len(sizes) != codes.shape[1]:
        raise RecgradError(
            f"codes: --codebook has {len(sizes)} levels, and the ids of '{path}' {codes.shape[1]}"
        )
    if (codes < 0).any() or (codes >= np.array(sizes)).any():
        row, level = (int(i) for i in np.argwhere((codes < 0) | (codes >= np.array(sizes)))[0])
        raise RecgradError(
            f"codes: code {codes[row, level]} of level {level + 1} at row {row} of '{path}' is outside its "
            f"codebook of {sizes[level]}; give the model's --codebook"
        )
    items = table.column(item_field).combine_chunks()
    items = items.combine_chunks() if isinstance(items, pa.ChunkedArray) else items
    if len(pc.unique(items)) != len(items):
        raise RecgradError(
            f"codes: '{path}' has an item twice in column '{item_field}'; keep one row an item"
        )
    left = 0
    if most:
        near = _matrix(table, "candidate_codes", path)
        codes, left = spread(codes, near.reshape(len(codes), -1, codes.shape[1]), sizes, most)
    return ItemCodes(items, codes, sizes, left)


def write_table(table: pa.Table, path: str | Path) -> None:
    """Write a parquet file, whole or not at all."""
    target = Path(path)
    if target.suffix != ".parquet":
        raise RecgradError(f"codes: '{target}'{whole_path(target)} must end with .parquet")
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(target.name + ".partial")
    try:
        pq.write_table(table, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def add_codes(path: str | Path, item_field: str, found: ItemCodes) -> tuple[pa.Table, int]:
    """The rows of a file with the codes of their items, null for items without; and how many those are."""
    rows = _read(path)
    if item_field not in rows.column_names:
        raise RecgradError(
            f"codes: '{path}' has no column '{item_field}'{nearest(item_field, rows.column_names)}"
        )
    own = rows.column(item_field)
    try:
        places = pc.index_in(own.cast(found.items.type), value_set=found.items)
    except pa.ArrowInvalid as error:
        raise RecgradError(
            f"codes: column '{item_field}' of '{path}' holds no items of the codes: {error}"
        ) from error
    codes = found.table(item_field).drop_columns([item_field])
    twice = set(codes.column_names) & set(rows.column_names)
    if twice:
        raise RecgradError(f"codes: '{path}' has a column '{min(twice)}' already; rename or drop it")
    for name in codes.column_names:
        rows = rows.append_column(name, codes.column(name).combine_chunks().take(places))
    return rows, int(places.null_count)


def _read(path: str | Path) -> pa.Table:
    try:
        return pq.read_table(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise RecgradError(
            f"codes: '{path}'{whole_path(path)} is no parquet file that can be read: {error}"
        ) from error


def _matrix(table: pa.Table, name: str, path: str | Path) -> Codes:
    column = table.column(name).combine_chunks()
    lengths = pc.list_value_length(column)
    if column.null_count or len(pc.unique(lengths)) != 1:
        raise RecgradError(f"codes: column '{name}' of '{path}' must be a list of equal length in every row")
    values = pc.list_flatten(column).to_numpy(zero_copy_only=False)
    codes: Codes = values.astype(np.int64).reshape(len(column), -1)
    return codes


def _lists(codes: Codes) -> pa.Array:
    offsets = pa.array(np.arange(len(codes) + 1, dtype=np.int32) * codes.shape[1])
    return pa.ListArray.from_arrays(offsets, pa.array(codes.reshape(-1)))
