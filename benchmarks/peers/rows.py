"""Rows of three data sets as plain arrays, for Recgrad and for plain PyTorch alike."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as parquet
import torch
from torch import Tensor

from recgrad.data.batch import Batch, KeyedDense, KeyedJagged

Array = npt.NDArray[Any]
DATA = Path(__file__).resolve().parents[2] / "../shared/data"
LENGTH = 10  # items of a history at most
KUAIRAND_IDS = (
    "video_id",
    "user_id",
    "author_id",
    "tab",
    "hourmin",
    "music_id",
    "onehot_feat3",
    "onehot_feat8",
)
KUAIRAND_NUMBERS = ("duration_ms", "freshness_days", "follow_user_num", "fans_user_num", "register_days")
CENSUS_NUMBERS = (
    "age",
    "wage_per_hour",
    "capital_gains",
    "capital_losses",
    "stock_dividends",
    "weeks_worked",
)
CENSUS_LABELS = {"income_50k": "50000+.", "marital_stat": "Never married"}


@dataclass
class Rows:
    """Rows of a data set.

    Attributes:
        ids: [rows, fields], each below its field's number of rows.
        sizes: of the fields' tables.
        numbers: float32 [rows, numbers].
        labels: float32 [rows] by name.
        history: [rows, LENGTH] ids of the first field, those that exist first; None for no history.
        lengths: how many exist.
    """

    ids: Array
    sizes: list[int]
    numbers: Array
    labels: dict[str, Array]
    history: Array | None = None
    lengths: Array | None = None

    def take(self, rows: Array) -> Rows:
        """Some of the rows."""
        labels = {name: label[rows] for name, label in self.labels.items()}
        if self.history is None or self.lengths is None:
            return Rows(self.ids[rows], self.sizes, self.numbers[rows], labels)
        return Rows(
            self.ids[rows], self.sizes, self.numbers[rows], labels, self.history[rows], self.lengths[rows]
        )

    def batch(self) -> Batch:
        """As Recgrad's models read them."""
        count, fields = self.ids.shape
        names = tuple(f"f{i}" for i in range(fields))
        ones = torch.ones(self.ids.size, dtype=torch.int32)
        sparse = KeyedJagged(names, _tensor(self.ids.T.reshape(-1)), ones, (count,) * fields, None, True)
        dense = KeyedDense(("numbers",), (self.numbers.shape[1],), torch.from_numpy(self.numbers))
        labels = {name: torch.from_numpy(label) for name, label in self.labels.items()}
        if self.history is None or self.lengths is None:
            return Batch(count, dense, sparse, {}, None, {}, labels)
        exists = np.arange(LENGTH) < self.lengths[:, None]
        items = _tensor(self.history[exists])
        one_each = torch.ones(len(items), dtype=torch.int32)
        sequence = KeyedJagged(("hist__f0",), items, one_each, (len(items),), None, True)
        lengths = {"hist__f0": torch.from_numpy(self.lengths.astype(np.int32))}
        return Batch(count, dense, sparse, lengths, sequence, {}, labels)


def _tensor(ids: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(ids, np.int64))


def synthetic(count: int) -> Rows:
    """Clicks by products of ids with Zipf frequencies, by numbers, and by the shown item in the history."""
    rng = np.random.default_rng(0)
    sizes = [5_000, 2_000, 500, 100, 50, 20, 10_000, 1_000]
    ranks = [rng.zipf(1.3, 4 * count) for _ in sizes]
    ids = np.stack([r[r <= size][:count] - 1 for r, size in zip(ranks, sizes, strict=True)], axis=1)
    vectors = [rng.normal(0, 0.5, (size, 3)) for size in sizes]
    linear = [rng.normal(0, 0.4, size) for size in sizes]
    numbers = rng.normal(size=(count, 5)).astype(np.float32)
    history = rng.zipf(1.3, (count, LENGTH)) % sizes[0]
    lengths = rng.integers(0, LENGTH + 1, count)
    repeat = rng.random((count, LENGTH)) < 0.1
    history = np.where(repeat, ids[:, :1], history)
    v = np.stack([table[column] for table, column in zip(vectors, ids.T, strict=True)], axis=1)
    pairs = ((v.sum(1) ** 2 - (v**2).sum(1)) / 2).sum(1)
    flat = sum(table[column] for table, column in zip(linear, ids.T, strict=True))
    seen = ((history == ids[:, :1]) & (np.arange(LENGTH) < lengths[:, None])).sum(1)
    logit = 0.4 * pairs + flat + numbers @ rng.normal(0, 0.3, 5) + 0.5 * seen - 1
    other = 0.5 * logit + (v[:, 0] * v[:, 1]).sum(1) - 0.5
    labels = {
        name: (rng.random(count) < 1 / (1 + np.exp(-z))).astype(np.float32)
        for name, z in (("click", logit), ("buy", other))
    }
    return Rows(ids, sizes, numbers, labels, history, lengths)


def census(count: int) -> Rows:
    """The census income data: above 50,000, and never married."""
    folder = DATA / "census_income"
    names = (folder / "columns.txt").read_text().strip().split(",")
    table = csv.read_csv(folder / "census-income.data.gz", csv.ReadOptions(column_names=names))
    chosen = np.random.default_rng(0).permutation(table.num_rows)[:count]
    table = table.take(pa.array(chosen))
    columns = {name: table[name].to_numpy(zero_copy_only=False) for name in names}
    labels = {
        name: np.array([str(value).strip() == positive for value in columns[name]], np.float32)
        for name, positive in CENSUS_LABELS.items()
    }
    left = set(names) - set(CENSUS_NUMBERS) - set(CENSUS_LABELS) - {"instance_weight"}
    fields = [_coded(columns[name].astype(str)) for name in names if name in left]
    numbers = _standard([columns[name] for name in CENSUS_NUMBERS])
    return Rows(np.stack(fields, axis=1), [int(f.max()) + 1 for f in fields], numbers, labels)


def kuairand(count: int) -> Rows:
    """KuaiRand-Pure: clicks and long views of short videos; the history is what the user watched last."""
    wanted = [*KUAIRAND_IDS, *KUAIRAND_NUMBERS, "is_click", "long_view", "watch_seq"]
    table = parquet.read_table(DATA / "kuairand" / "train.parquet", columns=wanted)
    chosen = np.random.default_rng(0).permutation(table.num_rows)[:count]
    table = table.take(pa.array(chosen))
    columns = {name: table[name].to_numpy() for name in wanted if name != "watch_seq"}
    lists = [list(seq or [])[-LENGTH:] for seq in table["watch_seq"].to_pylist()]
    lengths = np.array([len(items) for items in lists])
    history = np.zeros((len(lists), LENGTH), np.int64)
    history[np.arange(LENGTH) < lengths[:, None]] = np.concatenate(
        [np.array(items, np.int64) for items in lists]
    )
    fields = [columns["video_id"], *(_coded(columns[name]) for name in KUAIRAND_IDS[1:])]
    sizes = [max(int(fields[0].max()), int(history.max())) + 1, *(int(f.max()) + 1 for f in fields[1:])]
    numbers = _standard([columns[name] for name in KUAIRAND_NUMBERS])
    labels = {name: columns[name].astype(np.float32) for name in ("is_click", "long_view")}
    return Rows(np.stack(fields, axis=1), sizes, numbers, labels, history, lengths)


def _coded(column: Array) -> Array:
    codes: Array = np.unique(column, return_inverse=True)[1]
    return codes.reshape(-1)


def _standard(columns: list[Array]) -> Array:
    """log(1 + x), with mean 0 and variance 1."""
    values = np.log1p(np.maximum(np.stack(columns, axis=1).astype(np.float64), 0))
    spread = values.std(0)
    return ((values - values.mean(0)) / np.where(spread > 0, spread, 1)).astype(np.float32)
