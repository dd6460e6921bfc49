"""Weighted random negatives for two-tower models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recgrad.config.proto.data_pb2 import DataConfig
from recgrad.data.batch import Batch
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.faults import Faults
from recgrad.data.features.base import Feature
from recgrad.data.order import random_bits, random_mask
from recgrad.data.samplers.alias import draw
from recgrad.data.samplers.items import (
    ItemTable,
    TableSource,
    attribute_types,
    is_hashed,
    item_keys,
    load_items,
)
from recgrad.data.samplers.sampler import SAMPLERS, Sampler
from recgrad.errors import ConfigError, DataError, Problem

_NEGATIVES, _MASKS = 11, 12
_ROUNDS = 8


@SAMPLERS.register("negative_sampler")
class NegativeSampler(Sampler):
    """Draws items by weight, with replacement, none of which is an item of the batch.

    All rows of a batch share the `num_sample` items. Draws are a function of (seed, epoch,
    rank, first row of the batch).

    Args:
        items: the item table.
        encoder: of the features that read attributes alone.
        item_id_field: the column of the batch's own items.
        count: items to draw.
        seed: what draws depend on, with the place of the batch.
        hashed: own items are compared by hash.
        id_delimiter: what joins several own items in one text.
        mask_probability: how often an item's maskable features are hidden.
    """

    def __init__(
        self,
        items: ItemTable,
        encoder: FeatureEncoder,
        *,
        item_id_field: str,
        count: int,
        seed: int = 0,
        hashed: bool = False,
        id_delimiter: str = ";",
        mask_probability: float = 0.0,
    ) -> None:
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        self.items = items
        self.item_id_field = item_id_field
        self.count = count
        self._encoder = encoder
        self._seed = seed
        self._hashed = hashed
        self._id_delimiter = id_delimiter
        self._mask_probability = mask_probability

    @classmethod
    def check(cls, config: Any, features: Sequence[Feature]) -> None:
        """Refuse settings without meaning, and attributes that no feature reads."""
        problems = []
        where = "data_config.negative_sampler"
        if config.num_sample < 1:
            problems.append(Problem(f"{where}.num_sample", f"must be at least 1, got {config.num_sample}"))
        if len(set(config.attr_fields)) != len(config.attr_fields):
            problems.append(Problem(f"{where}.attr_fields", "an attribute is named twice; keep one"))
        if not config.attr_delimiter:
            problems.append(Problem(f"{where}.attr_delimiter", "must not be empty"))
        if config.field_delimiter and len(config.field_delimiter.encode()) != 1:
            problems.append(
                Problem(f"{where}.field_delimiter", f"must be one character, got {config.field_delimiter!r}")
            )
        if not any(_reads_only(feature, config.attr_fields) for feature in features):
            problems.append(Problem(f"{where}.attr_fields", "no feature reads these attributes alone"))
        if problems:
            raise ConfigError(problems)

    @classmethod
    def build(
        cls,
        config: Any,
        data: DataConfig,
        features: Sequence[Feature],
        schema: pa.Schema,
        *,
        training: bool,
        seed: int,
    ) -> NegativeSampler:
        """The sampler of a NegativeSampler message; num_eval_sample counts in evaluation when it is set."""
        attributes = tuple(config.attr_fields)
        cls.check(config, features)
        source = TableSource(
            path=config.input_path,
            attributes=attributes,
            attr_delimiter=config.attr_delimiter,
            field_delimiter=config.field_delimiter or "\t",
            types=attribute_types(attributes, schema),
            hashed=is_hashed(schema.field(config.item_id_field).type),
        )
        return cls(
            load_items(source, data),
            FeatureEncoder([feature for feature in features if _reads_only(feature, attributes)]),
            item_id_field=config.item_id_field,
            count=config.num_sample if training else config.num_eval_sample or config.num_sample,
            seed=seed,
            hashed=source.hashed,
            id_delimiter=config.item_id_delim,
            mask_probability=data.negative_sample_mask_prob if training else 0.0,
        )

    def sample(self, own: pa.Array, epoch: int, row: int, rank: int) -> Batch:
        """Encoded features of `count` items."""
        key = (self._seed, epoch, rank, row)
        rows = draw_others(self.items, self._own_keys(own), self.count, key)
        columns = self.items.take(rows)
        mask = None
        if self._mask_probability:
            mask = random_mask(self.count, self._mask_probability, _MASKS, *key)
        faults = Faults()
        encoded = self._encoder.encode(columns, self.count, faults, mask)
        fault = faults.first()
        if fault is not None:
            raise DataError(
                f"feature {fault.feature}: {fault.problem} (attribute '{fault.column}', row "
                f"{rows[fault.row]} of "
                f"item table '{self.items.name}'); {fault.remedy}"
            )
        return Batch.of(encoded)

    def _own_keys(self, own: pa.Array) -> npt.NDArray[np.int64]:
        """The keys of the batch's items; a row may hold several, as a list or joined text."""
        if pa.types.is_list(own.type) or pa.types.is_large_list(own.type):
            own = own.flatten()
        elif pa.types.is_string(own.type) and self._id_delimiter:
            own = pc.split_pattern(own, self._id_delimiter).flatten()
        return np.unique(item_keys(own.drop_null(), self._hashed, f"column '{self.item_id_field}'"))


def draw_others(
    items: ItemTable, own: npt.NDArray[np.int64], count: int, key: tuple[int, ...]
) -> npt.NDArray[np.int64]:
    """`count` rows of the table, drawn by weight among items that are not in `own` (sorted keys).

    Draws of own items are drawn again. When own items hold nearly all the weight, the rest is
    drawn from the others directly.
    """
    rows = np.empty(0, np.int64)
    for attempt in range(_ROUNDS):
        missing = count - len(rows)
        bits = random_bits(2 * missing, _NEGATIVES, attempt, *key).reshape(missing, 2)
        drawn = draw(items.keep, items.alias, bits)
        rows = np.concatenate([rows, drawn[~_among(items.keys[drawn], own)]])
        if len(rows) == count:
            return rows
    weights = np.where(_among(items.keys, own), 0.0, items.weights)
    total = np.cumsum(weights)
    if not total[-1] > 0:
        raise DataError(
            f"data: every item of item table '{items.name}' that has weight is in the batch, so there is no "
            "negative to draw; use a smaller batch_size, or a larger table"
        )
    chance = (random_bits(count - len(rows), _NEGATIVES, _ROUNDS, *key) >> np.uint64(11)) * 2.0**-53
    return np.concatenate([rows, np.searchsorted(total, chance * total[-1], side="right")])


def _among(keys: npt.NDArray[np.int64], own: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    if not len(own):
        return np.zeros(len(keys), np.bool_)
    return own[np.minimum(np.searchsorted(own, keys), len(own) - 1)] == keys


def _reads_only(feature: Feature, attributes: Sequence[str]) -> bool:
    return bool(feature.columns) and set(feature.columns) <= set(attributes)
