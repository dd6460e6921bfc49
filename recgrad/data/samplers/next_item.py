"""Items for models of sequences: what comes next at every position of a history, and what does not."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from recgrad.data.batch import Batch, NextItems
from recgrad.data.features.base import Feature
from recgrad.data.samplers.catalogue import CatalogueSampler
from recgrad.data.samplers.draws import draw_evenly, draw_items
from recgrad.data.samplers.exclusion import excluded_pairs
from recgrad.data.samplers.item_side import ItemSide, Own, build_items, check_items, own_items
from recgrad.data.samplers.sampler import SAMPLERS, Place, Sampler, SamplerSource
from recgrad.errors import ConfigError, DataError, Problem

Ints = npt.NDArray[np.int64]


@SAMPLERS.register("next_item_sampler")
class NextItemSampler(Sampler):
    """Looks up the items of each row's history and the row's own, and draws others or takes all.

    A row's own item is what comes after its history, so a history of n items has n that come next.
    Evaluation compares the row's own item alone, as `catalogue_sampler` does.

    Args:
        items: the items.
        history_field: the column of histories, oldest first.
        delimiter: what joins the items of a history that is text.
        count: items to draw; 0 takes the whole catalogue.
        evenly: draw every item as likely, whatever its weight.
        seed: what draws depend on, with the place of the batch.
    """

    draws: ClassVar[Literal["items", "rows", "all", "positions"]] = "positions"
    config_name: ClassVar[str] = "next_item_sampler"

    def __init__(
        self,
        items: ItemSide,
        history_field: str,
        *,
        delimiter: str = ";",
        count: int = 0,
        evenly: bool = False,
        seed: int = 0,
    ) -> None:
        self.items, self.history_field, self.delimiter = items, history_field, delimiter
        self.count, self.evenly = count, evenly
        self.columns = (items.id_field, history_field)
        self._seed = seed
        self._all: Batch | None = None
        self._lock = threading.Lock()

    @classmethod
    def check(cls, config: Any, features: Sequence[Feature]) -> None:
        """Refuse settings without meaning, and attributes that no feature reads."""
        where = f"data_config.{cls.config_name}"
        problems = check_items(config, where, features)
        if config.evenly and not config.num_sample:
            problems.append(Problem(f"{where}.evenly", "has no effect without num_sample; remove it"))
        if problems:
            raise ConfigError(problems)

    @classmethod
    def build(cls, config: Any, source: SamplerSource) -> Sampler:
        """The sampler of its message; in evaluation one that compares rows."""
        cls.check(config, source.features)
        if source.data.negative_sample_mask_prob:
            where = "data_config.negative_sample_mask_prob"
            raise ConfigError([Problem(where, f"has no effect with {cls.config_name}; remove it")])
        source.reader.check_columns([config.item_id_field, config.history_field])
        items = build_items(config, config.input_path, source)
        if not source.training:
            return CatalogueSampler(items, count=config.num_eval_sample, seed=source.seed)
        return cls(
            items,
            config.history_field,
            delimiter=config.history_delimiter,
            count=config.num_sample,
            evenly=config.evenly,
            seed=source.seed,
        )

    def sample(self, batch: Batch, columns: Mapping[str, pa.Array], place: Place) -> Batch:
        """The batch with items: those of its events and then those drawn, or the whole catalogue."""
        rows, lengths = self._events(batch, columns)
        counts = torch.from_numpy(lengths)
        if not self.count:
            known = NextItems(torch.from_numpy(rows), counts)
            return replace(batch, negatives=self._catalogue(), next_items=known)
        key, table = (self._seed, *place), self.items.table
        own, index = np.unique(rows, return_inverse=True)
        if self.evenly:
            drawn = draw_evenly(len(table.keys), self.count, key)
            share = np.full(self.count, 1 / len(table.keys))
        else:
            drawn = draw_items(table, self.count, key)
            share = table.weights[drawn] / table.total
        every = np.arange(len(own))
        same = excluded_pairs(table.keys[drawn], Own(table.keys[own], every, every + 1))
        known = NextItems(
            torch.from_numpy(index.reshape(-1).astype(np.int64)),
            counts,
            len(own),
            torch.from_numpy(same),
            torch.from_numpy(np.log(share * self.count).astype(np.float32)),
        )
        negatives = self.items.encode(np.concatenate([own, drawn]), key)
        return replace(batch, negatives=negatives, next_items=known)

    def _events(self, batch: Batch, columns: Mapping[str, pa.Array]) -> tuple[Ints, Ints]:
        """Rows of the table of all events, those of a history and then the row's own; and lengths."""
        id_field, hashed = self.items.id_field, self.items.hashed
        history = own_items(columns[self.history_field], hashed, self.delimiter, self.history_field)
        own = own_items(columns[id_field], hashed, "", id_field)
        lengths = history.stops - history.starts
        single = own.stops - own.starts
        if (single != 1).any():
            row = int(np.flatnonzero(single != 1)[0])
            what = f"column '{id_field}' has {single[row]} items; give every row the one that comes next"
            raise DataError(f"data: {what}{_where(batch, row)}")
        ends = np.cumsum(lengths + 1)
        keys = np.empty(ends[-1] if len(ends) else 0, np.int64)
        is_own = np.zeros(len(keys), bool)
        is_own[ends - 1] = True
        keys[is_own], keys[~is_own] = own.keys[own.starts], history.keys
        rows = self.items.table.rows_of(keys)
        if (rows < 0).any():
            event = int(np.flatnonzero(rows < 0)[0])
            column = id_field if is_own[event] else self.history_field
            what = "an item" if hashed else f"item {keys[event]}"
            place = _where(batch, int(np.searchsorted(ends, event, side="right")))
            raise DataError(
                f"data: {what} of column '{column}' is not in item table '{self.items.table.name}'{place}; "
                "add it, or leave its rows out"
            )
        return rows, lengths

    def _catalogue(self) -> Batch:
        with self._lock:
            if self._all is None:
                self._all = self.items.encode(np.arange(len(self.items.table.keys)), ())
            return self._all


def _where(batch: Batch, row: int) -> str:
    """The row and file of a row of a batch, for errors."""
    if batch.origin is None:
        return f" (row {row} of a batch)"
    file = batch.origin.files[int(batch.origin.file_index[row])]
    return f" (row {int(batch.origin.row[row])} of {file})"
