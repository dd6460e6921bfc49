"""Arrow columns as bags of values: one form for numbers, text, lists, and text cut at separators.

A bag holds the values of one row, or of one position of a sequence. What is missing (a null,
an empty text, a null in a list) is no value, so a missing row is an empty bag.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recgrad.data.arrow_columns import as_array, as_numbers, nulls_of
from recgrad.data.features.text import Floats, Mask, Text, cut, halve
from recgrad.data.hashing import Ints
from recgrad.kernels import cached_njit

Values = Ints | Floats | Text

_LISTS = (pa.lib.Type_LIST, pa.lib.Type_LARGE_LIST, pa.lib.Type_FIXED_SIZE_LIST)
_STRINGS = (
    pa.lib.Type_STRING,
    pa.lib.Type_LARGE_STRING,
    pa.lib.Type_STRING_VIEW,
    pa.lib.Type_BINARY,
    pa.lib.Type_LARGE_BINARY,
)
_PLAIN = {
    pa.lib.Type_INT64: np.int64,
    pa.lib.Type_INT32: np.int32,
    pa.lib.Type_INT16: np.int16,
    pa.lib.Type_INT8: np.int8,
    pa.lib.Type_UINT32: np.uint32,
    pa.lib.Type_UINT16: np.uint16,
    pa.lib.Type_UINT8: np.uint8,
    pa.lib.Type_FLOAT: np.float32,
    pa.lib.Type_DOUBLE: np.float64,
}


class ColumnTypeError(TypeError):
    """A column whose type cannot be read as values."""


@dataclass(frozen=True)
class Bags:
    """Values in bags.

    Attributes:
        values: int64, float32 or float64 numbers, or texts, bag after bag.
        offsets: int64 [bags + 1], where each bag begins; None when each bag holds one value.
        weights: float32, one for each value, or None.
    """

    values: Values
    offsets: Ints | None = None
    weights: npt.NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.values) if self.offsets is None else len(self.offsets) - 1

    @property
    def starts(self) -> Ints:
        """int64 [bags + 1]: where each bag begins, written out."""
        return np.arange(len(self.values) + 1) if self.offsets is None else self.offsets

    @property
    def lengths(self) -> Ints:
        """The number of values of each bag."""
        return np.ones(len(self.values), np.int64) if self.offsets is None else np.diff(self.offsets)

    def bag_of(self, values: Any) -> Ints:
        """The bags that values lie in, given their positions (or a mask of them)."""
        index = np.flatnonzero(values) if values.dtype == np.bool_ else values
        return index if self.offsets is None else np.searchsorted(self.offsets, index, "right") - 1

    def take(self, bags: Ints) -> Bags:
        """The bags at an index array, in its order."""
        if self.offsets is None:
            index, offsets = bags, None
        else:
            index, offsets = gather(self.offsets, bags)
        weights = None if self.weights is None else self.weights[index]
        return Bags(take_values(self.values, index), offsets, weights)

    def keep(self, mask: Mask) -> Bags:
        """The same bags with only the values where `mask` is true."""
        weights = None if self.weights is None else self.weights[mask]
        return Bags(take_values(self.values, mask), kept_offsets(self.starts, mask), weights)


def take_values(values: Values, index: Any) -> Values:
    """The values at an index array or mask."""
    return values.take(index) if isinstance(values, Text) else values[index]


def gather(offsets: Ints, bags: Ints) -> tuple[Ints, Ints]:
    """The positions of the values of `bags`, bag after bag, and where each of the bags begins there."""
    lengths = np.diff(offsets)[bags]
    begins = np.zeros(len(bags) + 1, np.int64)
    np.cumsum(lengths, out=begins[1:])
    return np.repeat(offsets[:-1][bags] - begins[:-1], lengths) + np.arange(begins[-1]), begins


def kept_offsets(offsets: Ints, keep: Mask) -> Ints:
    """Offsets after the values where `keep` is false are gone."""
    counts = np.zeros(len(keep) + 1, np.int64)
    np.cumsum(keep, out=counts[1:])
    return counts[offsets]


def read_bags(array: pa.Array, separator: str | None) -> Bags:
    """A bag for each row of a number, text or list column.

    Args:
        array: the column.
        separator: where texts are cut; None leaves them whole. Items of a list stay whole.
    """
    kind = array.type.id
    if kind in _PLAIN:
        return _numbers(array)
    if kind in _STRINGS or kind == pa.lib.Type_DICTIONARY:
        if kind == pa.lib.Type_DICTIONARY and not pa.types.is_string(array.type.value_type):
            return read_bags(array.dictionary_decode(), separator)
        return _texts(Text.of(array), separator)
    if kind in _LISTS:
        return nest(read_bags(array.flatten(), None), list_offsets(array))
    if kind == pa.lib.Type_NA:
        return Bags(np.empty(0, np.int64), np.zeros(len(array) + 1, np.int64))
    if kind == pa.lib.Type_BOOL:
        return _numbers(array.cast(pa.int64()))
    if kind == pa.lib.Type_UINT64:
        try:
            return _numbers(array.cast(pa.int64()))
        except pa.ArrowInvalid:  # beyond int64: only text holds it exactly
            return _texts(Text.of(array.cast(pa.string())), None)
    if kind == pa.lib.Type_HALF_FLOAT:
        return _numbers(array.cast(pa.float32()))
    if pa.types.is_decimal(array.type):
        return _numbers(array.cast(pa.float64()))
    raise ColumnTypeError(f"type {array.type} holds no numbers, texts or lists of them")


def read_positions(array: pa.Array, delimiter: str, separator: str | None) -> tuple[Bags, Ints]:
    """A bag for each position of a sequence column, and where the positions of each row begin.

    A text is cut at `delimiter` into positions and these at `separator` into values; the items
    of a list are positions; a number is a sequence of one. A null, an empty text and an empty
    list have no positions.
    """
    kind = array.type.id
    if kind == pa.lib.Type_DICTIONARY:
        return read_positions(array.dictionary_decode(), delimiter, separator)
    if kind in _LISTS:
        return read_bags(array.flatten(), separator), list_offsets(array)
    if kind in _STRINGS:
        text = Text.of(array)
        parts, cuts = cut(text, delimiter)
        offsets = np.arange(len(text) + 1) if cuts is None else cuts
        full = text.ends > text.starts
        if not full.all():
            keep = np.repeat(full, np.diff(offsets))
            parts, offsets = parts.take(keep), kept_offsets(offsets, keep)
        return _texts(parts, separator), offsets
    bags = read_bags(array, separator)
    return Bags(bags.values), bags.starts


def read_pairs(array: pa.Array, separator: str, colon: str = ":") -> tuple[Bags, Values, Mask]:
    """Keys in bags, with a value for each, and which keys have one, from `k1:v1|k2:v2` or a map.

    Texts and lists of texts are cut at the last `colon` of each item; numbers are keys alone.
    """
    if array.type.id == pa.lib.Type_MAP:
        index, offsets = _map_entries(array)
        at = as_array(index)
        keys, items = read_bags(array.keys.take(at), None), read_bags(array.items.take(at), None)
        has = np.ones(len(index), np.bool_) if items.offsets is None else np.diff(items.offsets) > 0
        values = items.values
        if items.offsets is not None:
            # Absent items stay behind as the first value; `has` tells them from real ones.
            first = np.where(has, items.offsets[:-1], 0)
            values = take_values(values, first) if len(values) else np.zeros(len(first), np.int64)
        if keys.offsets is not None:
            raise ColumnTypeError("a map has an empty key")
        return Bags(keys.values, offsets), values, has
    bags = read_bags(array, separator)
    if not isinstance(bags.values, Text):
        return bags, np.zeros(len(bags.values)), np.zeros(len(bags.values), np.bool_)
    keys_text, values_text, has = halve(bags.values, colon)
    return Bags(keys_text, bags.offsets), values_text, has


def nest(inner: Bags, offsets: Ints) -> Bags:
    """Bags of bags as bags: the values of all inner bags that `offsets` puts together."""
    return Bags(inner.values, offsets if inner.offsets is None else inner.offsets[offsets])


def list_offsets(array: pa.Array) -> Ints:
    """Where each row's items begin in `array.flatten()`, which skips what nulls cover."""
    lengths = as_numbers(pc.list_value_length(array))
    if array.null_count:
        lengths = np.where(nulls_of(array), 0, lengths)
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def _map_entries(array: pa.Array) -> tuple[Ints, Ints]:
    """Positions of the entries of the rows of a map array, and where each row's begin."""
    if not len(array):
        return np.empty(0, np.int64), np.zeros(1, np.int64)
    raw = np.frombuffer(array.buffers()[1], np.int32)[array.offset : array.offset + len(array) + 1]
    lengths = np.diff(raw).astype(np.int64)
    if array.null_count:
        lengths[nulls_of(array)] = 0
    offsets = np.zeros(len(array) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return np.repeat(raw[:-1].astype(np.int64) - offsets[:-1], lengths) + np.arange(offsets[-1]), offsets


def _numbers(array: pa.Array) -> Bags:
    dtype = _PLAIN[array.type.id]
    if len(array) == 0:
        return Bags(np.empty(0, np.int64 if np.issubdtype(dtype, np.integer) else dtype))
    values: Any = np.frombuffer(array.buffers()[1], dtype)[array.offset : array.offset + len(array)]
    if dtype is not np.int64 and values.dtype.kind in "iu":
        values = values.astype(np.int64)
    if not array.null_count:
        return Bags(values)
    return Bags(*_drop_nulls(values, np.frombuffer(array.buffers()[0], np.uint8), array.offset))


@cached_njit(nogil=True)
def _drop_nulls(values: Any, bitmap: Any, first: int) -> Any:
    """The values whose bit is set, and where each row's begins; no branches, so nulls cost no time."""
    kept = np.empty(len(values), values.dtype)
    offsets = np.empty(len(values) + 1, np.int64)
    count = 0
    offsets[0] = 0
    for i in range(len(values)):
        kept[count] = values[i]
        count += (bitmap[(first + i) >> 3] >> ((first + i) & 7)) & 1
        offsets[i + 1] = count
    return kept[:count], offsets


def _texts(text: Text, separator: str | None) -> Bags:
    offsets: Ints | None = None
    if separator is not None:
        text, offsets = cut(text, separator)
    empty = text.starts == text.ends
    if not empty.any():
        return Bags(text, offsets)
    bags = Bags(text, offsets)
    return bags.keep(~empty)
