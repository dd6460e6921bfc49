"""Census income and KuaiRand: rows to train on, to choose by and to measure on, coded by the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as parquet
from peers.rows import CENSUS_LABELS, CENSUS_NUMBERS, DATA, LENGTH, Array, Rows

INTERVALS = 32
KUAIRAND_IDS = (
    "video_id",
    "user_id",
    "author_id",
    "tag",
    "tab",
    "hourmin",
    "music_id",
    "upload_type",
    "user_active_degree",
    "onehot_feat3",
    "onehot_feat8",
)
KUAIRAND_NUMBERS = ("duration_ms", "freshness_days", "follow_user_num", "fans_user_num", "register_days")
KUAIRAND_LABELS = ("is_click", "long_view")
LAST_DAYS = 20220504  # of the training file, for validation


@dataclass
class Split:
    """Rows to train on, to choose by and to measure on; `groups` has the user of each row to measure on."""

    train: Rows
    valid: Rows
    test: Rows
    groups: Array | None = None


def census(rows: int, valid: int, test: int) -> Split:
    """Rows of the training file at random, and rows of the official test file."""
    folder = DATA / "census_income"
    names = (folder / "columns.txt").read_text().strip().split(",")

    def read(name: str) -> pa.Table:
        table = csv.read_csv(folder / name, csv.ReadOptions(column_names=names))
        for position, column in enumerate(names):
            if pa.types.is_string(table[column].type):
                trimmed = pc.utf8_trim_whitespace(table[column])
                table = table.set_column(position, column, trimmed)
        return table

    training = _some(read("census-income.data.gz"), rows + valid)
    testing = _some(read("census-income.test.gz"), test)
    tables = (training.slice(0, rows), training.slice(rows), testing)
    left = {*CENSUS_NUMBERS, *CENSUS_LABELS, "instance_weight"}
    labels = {name: _equals(positive) for name, positive in CENSUS_LABELS.items()}
    return _split(tables, [name for name in names if name not in left], CENSUS_NUMBERS, labels)


def kuairand(rows: int, valid: int, test: int) -> Split:
    """Rows of the first days, of the last two days of the training file, and of the test file's days."""
    wanted = [*KUAIRAND_IDS, *KUAIRAND_NUMBERS, *KUAIRAND_LABELS, "date", "watch_seq"]
    table = parquet.read_table(DATA / "kuairand" / "train.parquet", columns=wanted)
    late = pc.greater_equal(table["date"], LAST_DAYS)
    tables = (
        _some(table.filter(pc.invert(late)), rows),
        _some(table.filter(late), valid),
        _some(parquet.read_table(DATA / "kuairand" / "test.parquet", columns=wanted), test),
    )
    labels = {name: _equals(1) for name in KUAIRAND_LABELS}
    split = _split(tables, KUAIRAND_IDS, KUAIRAND_NUMBERS, labels)
    split.groups = tables[2]["user_id"].to_numpy()  # not their codes: users without training rows share one
    known = np.unique(tables[0]["video_id"].to_numpy())
    for part, source in zip((split.train, split.valid, split.test), tables, strict=True):
        part.history, part.lengths = _histories(source["watch_seq"], known)
    return split


def _some(table: pa.Table, count: int) -> pa.Table:
    return table.take(pa.array(np.random.default_rng(0).permutation(table.num_rows)[:count]))


def _equals(positive: Any) -> Callable[[pa.ChunkedArray], Array]:
    return lambda column: np.asarray(pc.equal(column, positive).fill_null(False), np.float32)


def _split(
    tables: tuple[pa.Table, ...],
    ids: Sequence[str],
    numbers: Sequence[str],
    labels: dict[str, Callable[[pa.ChunkedArray], Array]],
) -> Split:
    """Ids and the intervals of numbers as fields; numbers also as log(1 + x) with mean 0 and variance 1."""
    columns = [{name: _values(table[name]) for name in (*ids, *numbers)} for table in tables]
    known = {name: np.unique(columns[0][name]) for name in ids}
    edges = {name: _edges(columns[0][name]) for name in numbers}
    logs = [np.log1p(np.maximum(np.stack([part[n] for n in numbers], 1), 0)) for part in columns]
    center, spread = logs[0].mean(0), logs[0].std(0)
    spread = np.where(spread > 0, spread, 1)
    sizes = [*(len(known[name]) + 1 for name in ids), *(len(edges[name]) + 1 for name in numbers)]
    parts = [
        Rows(
            np.stack(
                [
                    *(_codes(part[name], known[name]) for name in ids),
                    *(np.searchsorted(edges[name], part[name], "right") for name in numbers),
                ],
                axis=1,
            ),
            sizes,
            ((log - center) / spread).astype(np.float32),
            {name: make(table[name]) for name, make in labels.items()},
        )
        for table, part, log in zip(tables, columns, logs, strict=True)
    ]
    return Split(*parts)


def _values(column: pa.ChunkedArray) -> Array:
    """Without nulls."""
    text = pa.types.is_string(column.type)
    filled = pc.fill_null(column, "" if text else 0)
    return np.asarray(filled.to_numpy(), str if text else np.float64)


def _codes(column: Array, known: Array) -> Array:
    """1 and up, 0 for what no training row has."""
    place = np.minimum(np.searchsorted(known, column), len(known) - 1)
    return np.where(known[place] == column, place + 1, 0)


def _edges(column: Array) -> Array:
    """Quantiles of what is not 0, and 0 by itself."""
    some = column[column != 0]
    cuts = np.quantile(some, np.linspace(0, 1, INTERVALS + 1)[:-1]) if len(some) else np.zeros(1)
    return np.unique(cuts)


def _histories(lists: pa.ChunkedArray, known: Array) -> tuple[Array, Array]:
    """The last items of each list, coded as the first field, those that exist first."""
    last = [list(items or [])[-LENGTH:] for items in lists.to_pylist()]
    lengths = np.array([len(items) for items in last])
    history = np.zeros((len(last), LENGTH), np.int64)
    flat = np.concatenate([np.array(items, np.float64) for items in last])
    history[np.arange(LENGTH) < lengths[:, None]] = _codes(flat, known)
    return history, lengths
