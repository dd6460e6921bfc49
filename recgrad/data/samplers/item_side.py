"""The items of a sampler: their table, their features, and which of them rows have themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recgrad.data.batch import Batch
from recgrad.data.encoder import FeatureEncoder
from recgrad.data.faults import Faults
from recgrad.data.features.base import Feature
from recgrad.data.order import random_mask
from recgrad.data.samplers.items import ItemTable, TableSource, attribute_types, load_items
from recgrad.data.samplers.sampler import SamplerSource
from recgrad.data.samplers.tables import is_hashed, keys_of
from recgrad.errors import DataError, Problem

Ints = npt.NDArray[np.int64]
_MASKS = 12


@dataclass(frozen=True)
class Own:
    """The items that rows have; row i those from `starts[i]` to `stops[i]` of `keys`."""

    keys: Ints
    starts: Ints
    stops: Ints


@dataclass(frozen=True)
class ItemSide:
    """An item table, what encodes its attributes, and the column of the rows' own items.

    Attributes:
        table: the items.
        encoder: of the features that read attributes alone.
        id_field: the column of the rows' own items.
        hashed: own items are compared by hash.
        delimiter: what joins several own items in one text; empty for none.
        mask_probability: how often an item's maskable features are hidden.
        prefix: of the sequence that own items are in, where rows have sequences of them; its features read
            attributes as sequences of one.
    """

    table: ItemTable
    encoder: FeatureEncoder
    id_field: str
    hashed: bool = False
    delimiter: str = ";"
    mask_probability: float = 0.0
    prefix: str = ""

    def own(self, column: pa.Array) -> Own:
        """The items of some rows."""
        return own_items(column, self.hashed, self.delimiter, self.id_field)

    def encode(self, rows: Ints, key: tuple[int, ...]) -> Batch:
        """Encoded features of rows of the table; `key` decides which are hidden."""
        columns = self.table.take(rows)
        if self.prefix:
            columns = {self.prefix + name: sequences_of_one(values) for name, values in columns.items()}
        mask = None
        if self.mask_probability:
            mask = random_mask(len(rows), self.mask_probability, _MASKS, *key)
        faults = Faults()
        encoded = self.encoder.encode(columns, len(rows), faults, mask)
        fault = faults.first()
        if fault is not None:
            raise DataError(
                f"feature {fault.feature}: {fault.problem} (attribute '{fault.column}', row "
                f"{rows[fault.row]} of item table '{self.table.name}'); {fault.remedy}"
            )
        return Batch.of(encoded)


def build_items(config: Any, path: str, source: SamplerSource) -> ItemSide:
    """The items of a sampler's message, whose table is at `path`."""
    attributes, schema = tuple(config.attr_fields), source.reader.schema
    prefix = sequence_prefix(source.features, attributes, config.item_id_field)
    names = [prefix + name for name in attributes]
    table = TableSource(
        path=path,
        attributes=attributes,
        attr_delimiter=config.attr_delimiter,
        field_delimiter=config.field_delimiter or "\t",
        types=attribute_types(names, schema),
        hashed=is_hashed(schema.field(config.item_id_field).type),
    )
    return ItemSide(
        load_items(table, source.data),
        FeatureEncoder(item_features(source.features, names)),
        id_field=config.item_id_field,
        hashed=table.hashed,
        delimiter=getattr(config, "item_id_delim", ";"),
        mask_probability=source.data.negative_sample_mask_prob if source.training else 0.0,
        prefix=prefix,
    )


def sequence_prefix(features: Sequence[Feature], attributes: Sequence[str], id_field: str) -> str:
    """What comes before the name of an attribute in a sequence of items, of which `id_field` is a column.

    Such as "cand__", where the rows' items are in the column cand__item and the attribute is item; empty
    where features read attributes by their names.
    """
    columns = {column for feature in features if feature.spec.sequence for column in feature.columns}
    found = [column.removesuffix(name) for column in columns for name in attributes if column.endswith(name)]
    fitting = [prefix for prefix in found if prefix.endswith("_") and id_field.startswith(prefix)]
    return max(fitting, key=len, default="")


def sequences_of_one(values: pa.Array) -> pa.Array:
    """A column of values as one of sequences with a value each; sequences stay as they are."""
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        return values
    return pa.ListArray.from_arrays(np.arange(len(values) + 1, dtype=np.int32), values)


def item_features(features: Sequence[Feature], attributes: Sequence[str]) -> list[Feature]:
    """The features that read attributes alone."""
    return [f for f in features if f.columns and set(f.columns) <= set(attributes)]


def check_items(
    config: Any, where: str, features: Sequence[Feature], attributes: Sequence[str] | None = None
) -> list[Problem]:
    """Settings of an item table without meaning, and attributes that no feature reads."""
    problems = []
    if len(set(config.attr_fields)) != len(config.attr_fields):
        problems.append(Problem(f"{where}.attr_fields", "an attribute is named twice; keep one"))
    if not config.attr_delimiter:
        problems.append(Problem(f"{where}.attr_delimiter", "must not be empty"))
    problems += check_delimiter(config, where)
    names = config.attr_fields if attributes is None else attributes
    prefix = sequence_prefix(features, names, config.item_id_field)
    if not item_features(features, [prefix + name for name in names]):
        problems.append(Problem(f"{where}.attr_fields", "no feature reads these attributes alone"))
    return problems


def check_delimiter(config: Any, where: str) -> list[Problem]:
    """A delimiter of columns that is not one character."""
    if config.field_delimiter and len(config.field_delimiter.encode()) != 1:
        got = f"must be one character, got {config.field_delimiter!r}"
        return [Problem(f"{where}.field_delimiter", got)]
    return []


def own_items(column: pa.Array, hashed: bool, delimiter: str, name: str) -> Own:
    """The items of rows of a column; a row may hold several, as a list or joined text, or none."""
    if pa.types.is_string(column.type) and delimiter:
        column = pc.split_pattern(column, delimiter)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        rows = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
        values = column.flatten()
    else:
        rows, values = np.arange(len(column)), column
    if values.null_count:
        rows = rows[np.asarray(values.is_valid())]
        values = values.drop_null()
    keys = keys_of(values, hashed, f"column '{name}'")
    every = np.arange(len(column))
    if values is column:  # one each, which needs no search
        return Own(keys, every, every + 1)
    return Own(keys, np.searchsorted(rows, every), np.searchsorted(rows, every, side="right"))
