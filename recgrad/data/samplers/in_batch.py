"""The items of other rows as negatives, with the probability of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from recgrad.data.arrow_columns import without_dictionary
from recgrad.data.batch import Batch, Comparison
from recgrad.data.features.base import Feature
from recgrad.data.readers.reader import Reader
from recgrad.data.samplers.exclusion import excluded_pairs
from recgrad.data.samplers.item_side import check_delimiter, own_items
from recgrad.data.samplers.items import ItemTable, TableSource, load_items
from recgrad.data.samplers.sampler import SAMPLERS, Place, Sampler, SamplerSource
from recgrad.data.samplers.tables import is_hashed
from recgrad.data.samplers.user_edges import UserEdges, build_user_edges
from recgrad.errors import ConfigError, DataError, Problem

Ints = npt.NDArray[np.int64]


@SAMPLERS.register("in_batch_sampler")
class InBatchSampler(Sampler):
    """Says of the items of other rows, which models take as negatives, how likely each is to be there.

    A row is not compared with its own item in other rows, nor with items that its user has an edge to.
    Probabilities are the weights of an item table, or how often items occur in the training data, which are
    counted in one pass before it begins.

    Args:
        id_field: the column of items.
        hashed: items are compared by hash.
        items: items with weights; None where no probability is needed.
        positives: edges whose items a row of their user is not compared with.
    """

    draws: ClassVar[Literal["items", "rows", "all", "positions"]] = "rows"

    def __init__(
        self,
        id_field: str,
        *,
        hashed: bool = False,
        items: ItemTable | None = None,
        positives: UserEdges | None = None,
    ) -> None:
        self._id_field, self._hashed = id_field, hashed
        self._items, self._positives = items, positives
        self.columns = tuple(dict.fromkeys([id_field, *([positives.id_field] if positives else [])]))

    @classmethod
    def check(cls, config: Any, features: Sequence[Feature]) -> None:
        """Refuse settings without meaning."""
        where = "data_config.in_batch_sampler"
        problems = check_delimiter(config, where)
        if bool(config.pos_edge_input_path) != bool(config.user_id_field):
            problems.append(
                Problem(where, "pos_edge_input_path and user_id_field go together; set both or none")
            )
        if problems:
            raise ConfigError(problems)

    @classmethod
    def build(cls, config: Any, source: SamplerSource) -> InBatchSampler:
        """The sampler of its message."""
        cls.check(config, source.features)
        field = config.item_id_field
        hashed = is_hashed(source.reader.schema.field(field).type)
        items = None
        if source.training and config.input_path:
            table = TableSource(config.input_path, (), ":", config.field_delimiter or "\t", (), hashed)
            items = load_items(table, source.data)
        elif source.training:
            items = count_items(source.reader, field, hashed)
        positives = None
        if config.pos_edge_input_path:
            positives = build_user_edges(config, config.pos_edge_input_path, source)
        return cls(field, hashed=hashed, items=items, positives=positives)

    def sample(self, batch: Batch, columns: Mapping[str, pa.Array], place: Place) -> Batch:
        """The batch with what is known of its items."""
        own = own_items(columns[self._id_field], self._hashed, "", self._id_field)
        if (own.stops - own.starts != 1).any():
            raise DataError(f"data: column '{self._id_field}' has no item in some row; give every row one")
        sets = [own]
        if self._positives is not None:
            sets.append(self._positives.of(columns[self._positives.id_field]))
        excluded = excluded_pairs(own.keys, *sets, diagonal=False)
        log_counts = None if self._items is None else torch.from_numpy(self._log_counts(own.keys))
        return replace(batch, comparison=Comparison(torch.from_numpy(excluded), log_counts))

    def _log_counts(self, keys: Ints) -> npt.NDArray[np.float32]:
        """log(number of other rows · probability of the item)."""
        assert self._items is not None
        rows = self._items.rows_of(keys)
        weights = np.where(rows >= 0, self._items.weights[rows], 0.0)
        if len(weights) and not weights.min() > 0:
            what = "an item" if self._hashed else f"item {keys[int(weights.argmin())]}"
            raise DataError(
                f"data: {what} of column '{self._id_field}' has no weight above 0 in item table "
                f"'{self._items.name}'; give it one"
            )
        return np.log(weights * (max(len(keys) - 1, 1) / self._items.total)).astype(np.float32)


def count_items(reader: Reader, field: str, hashed: bool) -> ItemTable:
    """How often each item occurs in the rows of a reader, as weights."""
    keys: Ints = np.zeros(0, np.int64)
    counts: npt.NDArray[np.float64] = np.zeros(0)
    for fragment in reader.fragments:
        for block in reader.read(fragment, [field]):
            for chunk in block.table.column(field).chunks:
                own = own_items(without_dictionary(chunk), hashed, "", field)
                found, number = np.unique(own.keys, return_counts=True)
                merged, place = np.unique(np.concatenate([keys, found]), return_inverse=True)
                counts = np.bincount(place, np.append(counts, number), len(merged)).astype(np.float64)
                keys = merged
    if not len(keys):
        raise DataError(f"data: column '{field}' has no items to count")
    return ItemTable.of(f"counts of column '{field}'", keys, counts.astype(np.float64), {})
