"""What a feature reads from a batch: its inputs, and where their bad values lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from recgrad.data.faults import Faults
from recgrad.data.features.buckets import Report
from recgrad.data.features.columns import Bags, Values, gather, kept_offsets, nest, take_values
from recgrad.data.features.outputs import BagIndex, Dense, Sparse
from recgrad.data.features.text import Mask, Text, halve
from recgrad.data.hashing import Ints
from recgrad.errors import DataError


@dataclass(frozen=True)
class Input:
    """One input of a feature.

    Attributes:
        name: of the column, or of the feature for source "feature", or the constant's text.
        source: "column", "feature" or "const".
        sequence: it has positions.
        separator: where its texts are cut; None for never.
        pairs: it holds `key:value` items or a map.
        slots: an empty item keeps its place; a row is then read as Slots.
    """

    name: str
    source: str = "column"
    sequence: bool = False
    separator: str | None = None
    pairs: bool = False
    slots: bool = False


@dataclass(frozen=True)
class Slots:
    """The items of rows, each a bag of its value or of none; row i holds items offsets[i]:offsets[i + 1]."""

    items: Bags
    offsets: Ints

    @property
    def bags(self) -> Bags:
        """The values of each row."""
        return nest(self.items, self.offsets)

    def take(self, rows: Ints) -> Slots:
        """The rows at an index array."""
        index, offsets = gather(self.offsets, rows)
        return Slots(self.items.take(index), offsets)

    def keep(self, mask: Mask) -> Slots:
        """The same rows with only the items where `mask` is true."""
        return Slots(self.items.take(np.flatnonzero(mask)), kept_offsets(self.offsets, mask))


@dataclass(frozen=True)
class Pairs:
    """Keys in bags with a value for each; `has` is false where there is no value."""

    keys: Bags
    values: Values
    has: Mask

    @staticmethod
    def of(bags: Bags) -> Pairs:
        """Texts cut at their last colon; numbers are keys alone."""
        if not isinstance(bags.values, Text):
            return Pairs(bags, np.zeros(len(bags.values)), np.zeros(len(bags.values), np.bool_))
        keys, values, has = halve(bags.values, ":")
        return Pairs(Bags(keys, bags.offsets), values, has)

    def take(self, bags: Ints) -> Pairs:
        """The bags at an index array."""
        index, offsets = gather(self.keys.starts, bags)
        return Pairs(
            Bags(take_values(self.keys.values, index), offsets),
            take_values(self.values, index),
            self.has[index],
        )


class Frame:
    """The columns of a batch, and what has been made of them so far."""

    def __init__(
        self, columns: Mapping[str, pa.Array], size: int, mask: npt.NDArray[np.bool_] | None = None
    ) -> None:
        self.columns = columns
        self.size = size
        self.mask = mask
        self.results: dict[str, Sparse | Dense] = {}

    def array(self, source: Input, masked: bool) -> pa.Array:
        """A column, or a constant in every row; masked rows are null."""
        if source.source == "const":
            return pa.repeat(pa.scalar(source.name, pa.string()), self.size)
        try:
            array = self.columns[source.name]
        except KeyError:
            has = ", ".join(sorted(self.columns))
            raise DataError(f"data: column '{source.name}' is missing (has: {has})") from None
        if masked and self.mask is not None:
            # take, and not if_else, since that cannot do maps
            array = array.take(pa.array(np.arange(self.size), mask=np.asarray(self.mask)))
        return array


class Scope:
    """Where the bags of a feature come from, so that bad values become bad rows."""

    def __init__(self, faults: Faults, feature: str, rows: Ints | None) -> None:
        self._faults = faults
        self._feature = feature
        self._rows = rows

    def report(self, bags: Bags, column: str) -> Report:
        """A Report for values of `bags`, which came from `column`."""

        def report(where: Any, reason: str, values: Any, remedy: str) -> None:
            bag = where.index if isinstance(where, BagIndex) else bags.bag_of(where)
            rows = bag if self._rows is None else self._rows[bag]
            self._faults.add(
                rows, column=column, feature=self._feature, reason=reason, values=values, remedy=remedy
            )

        return report
