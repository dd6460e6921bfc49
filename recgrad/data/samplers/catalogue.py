"""The whole catalogue as negatives."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch

from recgrad.data.batch import Batch, Comparison
from recgrad.data.features.base import Feature
from recgrad.data.samplers.draws import among, draw_evenly
from recgrad.data.samplers.exclusion import excluded_pairs
from recgrad.data.samplers.item_side import ItemSide, build_items, check_items
from recgrad.data.samplers.sampler import SAMPLERS, Place, Sampler, SamplerSource
from recgrad.errors import ConfigError, DataError, Problem
from recgrad.limits import FILLED

Ints = npt.NDArray[np.int64]


@SAMPLERS.register("catalogue_sampler")
class CatalogueSampler(Sampler):
    """Every item of the table is a negative of every row but that of the row itself: for `full_softmax`.

    A row may have several items of its own, as a list or joined text. Features of the items are encoded
    once. Evaluation ranks the own item among all of them, or among `num_eval_sample` that are drawn evenly.

    With `num_sample` a training batch meets the own items of all its rows, and items drawn evenly with
    replacement that stand for all others: each counts items / draws times, so that the sum of exponentials
    of `full_softmax` is expected to be that of all items.

    Args:
        items: the items.
        count: items to draw for an evaluation; 0 for all.
        drawn: items to draw for a batch of training; 0 for all.
        seed: what draws depend on, with the place of the batch.
    """

    class Settings(TypedDict, total=False):
        """The fields of its message that have limits."""

        attr_fields: Annotated[Sequence[str], FILLED]

    draws: ClassVar[Literal["items", "rows", "all", "positions"]] = "all"
    config_name: ClassVar[str] = "catalogue_sampler"

    def __init__(self, items: ItemSide, *, count: int = 0, drawn: int = 0, seed: int = 0) -> None:
        self.items = items
        self.count, self.drawn = count, drawn
        self.columns = (items.id_field,)
        self._seed = seed
        self._all: Batch | None = None
        self._lock = threading.Lock()

    @classmethod
    def check(cls, config: Any, features: Sequence[Feature]) -> None:
        """Refuse settings without meaning, and attributes that no feature reads."""
        problems = check_items(config, f"data_config.{cls.config_name}", features)
        if problems:
            raise ConfigError(problems)

    @classmethod
    def build(cls, config: Any, source: SamplerSource) -> CatalogueSampler:
        """The sampler of its message."""
        cls.check(config, source.features)
        if source.training and source.data.negative_sample_mask_prob:
            where = "data_config.negative_sample_mask_prob"
            raise ConfigError([Problem(where, "has no effect with catalogue_sampler; remove it")])
        items = build_items(config, config.input_path, source)
        if source.training:
            return cls(items, drawn=config.num_sample, seed=source.seed)
        return cls(items, count=config.num_eval_sample, seed=source.seed)

    def sample(self, batch: Batch, columns: Mapping[str, pa.Array], place: Place) -> Batch:
        """The batch with all items, or with those drawn for an evaluation."""
        own = self.items.own(columns[self.items.id_field])
        lengths = own.stops - own.starts
        if self.count:
            self._check_single(lengths)
            key = (self._seed, *place)
            rows = draw_evenly(len(self.items.table.keys), self.count, key)
            excluded = excluded_pairs(self.items.table.keys[rows], own)
            return replace(
                batch,
                negatives=self.items.encode(rows, key),
                comparison=Comparison(torch.from_numpy(excluded)),
            )
        found = self._places(own.keys)
        log_counts = None
        if self.drawn:
            key = (self._seed, *place)
            rows, found, log_counts = self._drawn(found, key)
            negatives = self.items.encode(rows, key)
        else:
            negatives = self._catalogue()
        places = torch.from_numpy(found)
        own_rows = torch.from_numpy(np.repeat(np.arange(len(lengths)), lengths))
        comparison = Comparison(
            torch.stack([own_rows, places], dim=1),
            None if log_counts is None else torch.from_numpy(log_counts),
            own=places,
            own_rows=None if (lengths == 1).all() else own_rows,
        )
        return replace(batch, negatives=negatives, comparison=comparison)

    def _drawn(self, own: Ints, key: tuple[int, ...]) -> tuple[Ints, Ints, npt.NDArray[np.float32]]:
        """Rows of the table to compare with, where own ones are among them, log of expected draws of each.

        Own items of the batch are there with certainty; draws of them are left out.
        """
        size = len(self.items.table.keys)
        there, places = np.unique(own, return_inverse=True)
        draws = draw_evenly(size, self.drawn, key)
        others = draws[~among(draws, there)]
        log_counts = np.zeros(len(there) + len(others), np.float32)
        log_counts[len(there) :] = np.log(self.drawn / size)
        return np.concatenate([there, others]), places.reshape(-1), log_counts

    def _check_single(self, lengths: Ints) -> None:
        if (lengths != 1).any():
            row = int(np.flatnonzero(lengths != 1)[0])
            raise DataError(
                f"data: row {row} of a batch has {lengths[row]} ids in column '{self.items.id_field}'; with "
                "num_eval_sample catalogue_sampler takes one item a row"
            )

    def _places(self, keys: Ints) -> Ints:
        """The row of the table of each own item."""
        places = self.items.table.rows_of(keys)
        if (places < 0).any():
            key = int(keys[np.flatnonzero(places < 0)[0]])
            what = "an item" if self.items.hashed else f"item {key}"
            raise DataError(
                f"data: {what} of column '{self.items.id_field}' is not in item table "
                f"'{self.items.table.name}'; add it, or leave its rows out"
            )
        return places

    def _catalogue(self) -> Batch:
        with self._lock:
            if self._all is None:
                self._all = self.items.encode(np.arange(len(self.items.table.keys)), ())
            return self._all
