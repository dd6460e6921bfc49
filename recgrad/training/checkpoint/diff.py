"""How two checkpoints differ: value by value, row by row."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from recgrad.training.checkpoint.snapshot import AnyArray, Snapshot, TableRows

CHUNK = 1 << 20


@dataclass(frozen=True)
class Difference:
    """What two checkpoints have under one name.

    Attributes:
        name: path in the tree, or table and array.
        equal: the same bits, shape and type.
        note: what cannot be put into numbers: another shape, only in one of them …
        max_abs: largest |a − b|; infinite where one is NaN and the other is not.
        max_rel: largest |a − b| / max(|a|, |b|).
        only_first: rows that only the first has.
        only_second: rows that only the second has.
    """

    name: str
    equal: bool
    note: str = ""
    max_abs: float = 0.0
    max_rel: float = 0.0
    only_first: int = 0
    only_second: int = 0


def diff_snapshots(first: Snapshot, second: Snapshot) -> list[Difference]:
    """A line for each value of the trees and each array of the tables, in the order of names."""
    a, b = dict(_leaves(first.tree)), dict(_leaves(second.tree))
    found = [_diff_values(name, a, b) for name in sorted(a.keys() | b.keys())]
    tables_a = {table.name: table for table in first.tables}
    tables_b = {table.name: table for table in second.tables}
    for name in sorted(tables_a.keys() | tables_b.keys()):
        found += _diff_tables(name, tables_a.get(name), tables_b.get(name))
    return found


def compare_arrays(a: AnyArray, b: AnyArray) -> tuple[bool, float, float]:
    """(same bits, largest absolute, largest relative difference) of two arrays of one shape."""
    a, b = np.ascontiguousarray(a).reshape(-1), np.ascontiguousarray(b).reshape(-1)
    equal, max_abs, max_rel = a.dtype == b.dtype, 0.0, 0.0
    for start in range(0, len(a), CHUNK):
        x, y = a[start : start + CHUNK], b[start : start + CHUNK]
        if a.dtype == b.dtype and bytes(x.data) == bytes(y.data):
            continue
        equal = False
        absolute, relative = _largest(x.astype(np.float64), y.astype(np.float64))
        max_abs, max_rel = max(max_abs, absolute), max(max_rel, relative)
    return equal, max_abs, max_rel


def _largest(x: AnyArray, y: AnyArray) -> tuple[float, float]:
    both = (x == y) | (np.isnan(x) & np.isnan(y))
    x, y = x[~both], y[~both]
    if not len(x):
        return 0.0, 0.0
    with np.errstate(all="ignore"):
        distance = np.abs(x - y)
        relative = distance / np.maximum(np.abs(x), np.abs(y))
    distance, relative = (np.where(np.isnan(d), np.inf, d) for d in (distance, relative))
    return float(distance.max()), float(relative.max())


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}/{key}" if path else str(key))
    elif isinstance(value, (list, tuple)) and any(
        isinstance(v, (Mapping, list, tuple, torch.Tensor)) for v in value
    ):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}/{index}")
    else:
        yield path, value


def _diff_values(name: str, first: Mapping[str, Any], second: Mapping[str, Any]) -> Difference:
    if name not in first or name not in second:
        return Difference(name, False, f"only in the {'second' if name in second else 'first'}")
    a, b = first[name], second[name]
    if type(a) is not type(b):
        return Difference(name, False, f"{type(a).__name__} | {type(b).__name__}")
    if isinstance(a, (torch.Tensor, np.ndarray)):
        return _diff_arrays(name, a, b)
    if isinstance(a, float):
        equal = struct.pack("d", a) == struct.pack("d", b)
        absolute, relative = _largest(np.array([a]), np.array([b]))
        return Difference(name, equal, "" if equal else f"{a!r} | {b!r}", absolute, relative)
    # repr tells 1 from 1.0 and True inside lists, and finds NaN equal to itself.
    equal = repr(a) == repr(b)
    return Difference(name, equal, "" if equal else f"{repr(a)[:60]} | {repr(b)[:60]}")


def _diff_arrays(name: str, a: Any, b: Any) -> Difference:
    if a.shape != b.shape:
        return Difference(name, False, f"shape {list(a.shape)} | {list(b.shape)}")
    equal, max_abs, max_rel = compare_arrays(_numbers(a), _numbers(b))
    if a.dtype != b.dtype:
        return Difference(name, False, f"{a.dtype} | {b.dtype}", max_abs, max_rel)
    return Difference(name, equal, "", max_abs, max_rel)


def _numbers(value: Any) -> AnyArray:
    if isinstance(value, torch.Tensor):
        exact_in_float32 = value.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)
        plain: AnyArray = (value.float() if exact_in_float32 else value).numpy()
        return plain
    return np.asarray(value)


def _diff_tables(name: str, first: TableRows | None, second: TableRows | None) -> list[Difference]:
    label = f"table {name}"
    if first is None or second is None:
        only = first or second
        assert only is not None
        which = "second" if first is None else "first"
        return [Difference(label, False, f"only in the {which} ({only.touched_rows:,} rows)")]
    shapes = (first.num_rows, first.dim), (second.num_rows, second.dim)
    note = "" if shapes[0] == shapes[1] else f"{list(shapes[0])} | {list(shapes[1])}"
    if first.dim != second.dim:
        return [Difference(label, False, note)]
    _, at_first, at_second = np.intersect1d(
        first.row_ids, second.row_ids, assume_unique=True, return_indices=True
    )
    counts = first.touched_rows - len(at_first), second.touched_rows - len(at_second)

    def compare(key: str, a: AnyArray | None, b: AnyArray | None) -> Difference:
        return _diff_rows(key, a, b, at_first, at_second, counts, note)

    found = [compare(label, first.weights, second.weights)]
    # One by one: those of a table in several files are read when they are looked up.
    for state in sorted(first.states.keys() | second.states.keys()):
        found.append(compare(f"{label} {state}", first.states.get(state), second.states.get(state)))
    return found


def _diff_rows(
    name: str,
    a: AnyArray | None,
    b: AnyArray | None,
    at_first: AnyArray,
    at_second: AnyArray,
    only: tuple[int, int],
    note: str,
) -> Difference:
    if a is None or b is None:
        return Difference(name, False, f"only in the {'second' if a is None else 'first'}")
    if a.shape[1:] != b.shape[1:]:
        return Difference(name, False, f"width {list(a.shape[1:])} | {list(b.shape[1:])}")
    if a.ndim == 0:
        return _diff_arrays(name, a, b)
    same_rows = only == (0, 0)
    equal, max_abs, max_rel = compare_arrays(
        a if same_rows else a[at_first], b if same_rows else b[at_second]
    )
    return Difference(name, equal and same_rows and not note, note, max_abs, max_rel, *only)
