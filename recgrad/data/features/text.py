"""Texts as spans of one byte buffer, and the kernels that cut, join, compare and read them.

A span is `data[start:end]`. Cutting a column at separators moves no bytes; the kernels run
without the GIL. Bytes are UTF-8, and a separator is a whole UTF-8 string, so cutting never
splits a character.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from recgrad.data.arrow_columns import as_array, as_numbers
from recgrad.data.hashing import Bytes, Ints, string_spans
from recgrad.kernels import cached_njit

Floats = npt.NDArray[Any]
Mask = npt.NDArray[np.bool_]

_SPANS = (pa.lib.Type_STRING, pa.lib.Type_LARGE_STRING, pa.lib.Type_BINARY, pa.lib.Type_LARGE_BINARY)
_NOTHING = np.frombuffer(b"", np.uint8)


@dataclass(frozen=True)
class Text:
    """Byte spans: text i is `data[starts[i]:ends[i]]`.

    `ordered` says that spans lie one after another, so that the first start and the last end
    bound them all.
    """

    data: Bytes
    starts: Ints
    ends: Ints
    ordered: bool = False

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, i: int) -> str:
        """Text i as a Python string, for messages."""
        return bytes(self.data[self.starts[i] : self.ends[i]]).decode("utf-8", "replace")

    def take(self, index: Any) -> Text:
        """The texts at an index array, mask or slice."""
        ordered = self.ordered and isinstance(index, np.ndarray) and index.dtype == np.bool_
        return Text(self.data, self.starts[index], self.ends[index], ordered)

    def to_arrow(self) -> pa.Array:
        """The same texts as a large_string array, of the same bytes where they lie one after another."""
        if self.ordered and len(self) and np.array_equal(self.starts[1:], self.ends[:-1]):
            return _to_arrow(self.data, np.append(self.starts, self.ends[-1:]))
        return _to_arrow(*_join((self.data,), (self.starts,), (self.ends,), _NOTHING))

    @staticmethod
    def of(array: pa.Array) -> Text:
        """The values of a string, binary or dictionary array; nulls are empty."""
        if pa.types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if array.type.id not in _SPANS:
            array = array.cast(pa.large_string())
        return Text(*string_spans(array), ordered=True)

    @staticmethod
    def of_ints(values: Ints) -> Text:
        """Integers as decimal text."""
        return Text.of(as_array(values).cast(pa.string()))

    @staticmethod
    def of_words(words: Sequence[str]) -> Text:
        """Texts of Python's own; Arrow would import pandas for them, where that is installed."""
        encoded = [word.encode() for word in words]
        offsets = np.array([0, *accumulate(map(len, encoded))], np.int64)
        return Text(np.frombuffer(b"".join(encoded), np.uint8), offsets[:-1], offsets[1:], ordered=True)


def cut(text: Text, separator: str) -> tuple[Text, Ints | None]:
    """The parts of each text between separators, and where the parts of each text begin.

    A text without a separator is one part, an empty text one empty part, as str.split does.
    None for the offsets says that each text is one part.
    """
    mark = separator.encode()
    if not _occurs(text, mark):
        return text, None
    if len(mark) == 1:
        starts, ends, offsets = _cut_at_byte(text.data, text.starts, text.ends, mark[0])
    else:
        starts, ends, offsets = _cut(text.data, text.starts, text.ends, np.frombuffer(mark, np.uint8))
    return Text(text.data, starts, ends, text.ordered), offsets


def halve(text: Text, separator: str) -> tuple[Text, Text, Mask]:
    """What stands before and after the last `separator` of each text, and which texts have one.

    A text without a separator is all before, with an empty rest.
    """
    mark = np.frombuffer(separator.encode(), np.uint8)
    middle = _last(text.data, text.starts, text.ends, mark)
    has = middle >= 0
    before = Text(text.data, text.starts, np.where(has, middle, text.ends))
    return before, Text(text.data, np.where(has, middle + len(mark), text.ends), text.ends), has


def join(parts: Sequence[Text], separator: str) -> Text:
    """Text i of each part, joined with `separator`."""
    data, offsets = _join(
        tuple(part.data for part in parts),
        tuple(part.starts for part in parts),
        tuple(part.ends for part in parts),
        np.frombuffer(separator.encode(), np.uint8),
    )
    data.flags.writeable = False
    return Text(data, offsets[:-1], offsets[1:])


def parse_ints(text: Text) -> tuple[Ints, Mask]:
    """Decimal integers, and which texts are none (or do not fit 64 bits)."""
    values, bad = _parse_ints(text.data, text.starts, text.ends)
    return values, bad


def parse_floats(text: Text) -> tuple[npt.NDArray[np.float64], Mask]:
    """Decimal numbers in float64, and which texts are none; "nan" and "inf" are read as such."""
    array = text.to_arrow()
    try:
        return as_numbers(pc.cast(array, pa.float64())), np.zeros(len(text), np.bool_)
    except pa.ArrowInvalid:
        array = _trimmed(text, array)
    number = r"^[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$|^[+-]?(?i:nan|inf|infinity)$"
    good = pc.match_substring_regex(array, number)
    values = as_numbers(pc.cast(pc.if_else(good, array, "0"), pa.float64()))
    return values, ~as_numbers(good)


def _trimmed(text: Text, array: pa.Array) -> pa.Array:
    """Texts without white space around them; bytes that are no UTF-8 are replaced, as in messages."""
    try:
        return pc.utf8_trim_whitespace(array)
    except pa.ArrowInvalid:
        readable = [text[i] for i in range(len(text))]
        return pc.utf8_trim_whitespace(pa.array(readable, pa.large_string()))


def _to_arrow(data: Bytes, offsets: Ints) -> pa.Array:
    return pa.Array.from_buffers(
        pa.large_string(), len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _occurs(text: Text, mark: bytes) -> bool:
    """Whether a separator may lie in the texts: one pass at memory speed, to spare the slower cut."""
    if not text.ordered or not len(text):
        return len(text) > 0
    return mark in text.data[text.starts[0] : text.ends[-1]].tobytes()


@numba.njit(inline="always")
def _matches(data: Any, at: Any, mark: Any) -> Any:
    for k in range(len(mark)):  # noqa: SIM110 (numba has no all() of a generator)
        if data[at + k] != mark[k]:
            return False
    return True


@cached_njit(nogil=True)
def _cut(data: Bytes, starts: Ints, ends: Ints, mark: Bytes) -> Any:
    width = len(mark)
    offsets = np.empty(len(starts) + 1, np.int64)
    offsets[0] = 0
    for i in range(len(starts)):
        count, at = 1, starts[i]
        while at + width <= ends[i]:
            if _matches(data, at, mark):
                count += 1
                at += width
            else:
                at += 1
        offsets[i + 1] = offsets[i] + count
    out_starts = np.empty(offsets[-1], np.int64)
    out_ends = np.empty(offsets[-1], np.int64)
    for i in range(len(starts)):
        k, at, begin = offsets[i], starts[i], starts[i]
        while at + width <= ends[i]:
            if _matches(data, at, mark):
                out_starts[k], out_ends[k] = begin, at
                k += 1
                at += width
                begin = at
            else:
                at += 1
        out_starts[k], out_ends[k] = begin, ends[i]
    return out_starts, out_ends, offsets


@cached_njit(nogil=True)
def _cut_at_byte(data: Bytes, starts: Ints, ends: Ints, mark: int) -> Any:
    """_cut for separators of one byte, the common case."""
    offsets = np.empty(len(starts) + 1, np.int64)
    offsets[0] = 0
    for i in range(len(starts)):
        count = 1
        for at in range(starts[i], ends[i]):
            count += data[at] == mark
        offsets[i + 1] = offsets[i] + count
    out_starts = np.empty(offsets[-1], np.int64)
    out_ends = np.empty(offsets[-1], np.int64)
    k = 0
    for i in range(len(starts)):
        out_starts[k] = starts[i]
        for at in range(starts[i], ends[i]):
            if data[at] == mark:
                out_ends[k] = at
                k += 1
                out_starts[k] = at + 1
        out_ends[k] = ends[i]
        k += 1
    return out_starts, out_ends, offsets


@cached_njit(nogil=True)
def _last(data: Bytes, starts: Ints, ends: Ints, mark: Bytes) -> Any:
    found = np.full(len(starts), -1, np.int64)
    for i in range(len(starts)):
        for at in range(ends[i] - len(mark), starts[i] - 1, -1):
            if _matches(data, at, mark):
                found[i] = at
                break
    return found


@cached_njit(nogil=True)
def _join(data: Any, starts: Any, ends: Any, mark: Bytes) -> Any:
    count = len(starts[0])
    offsets = np.empty(count + 1, np.int64)
    offsets[0] = 0
    for i in range(count):
        size = len(mark) * (len(data) - 1)
        for p in range(len(data)):
            size += ends[p][i] - starts[p][i]
        offsets[i + 1] = offsets[i] + size
    out = np.empty(offsets[-1], np.uint8)
    for i in range(count):
        at = offsets[i]
        for p in range(len(data)):
            if p:
                for k in range(len(mark)):
                    out[at] = mark[k]
                    at += 1
            for k in range(starts[p][i], ends[p][i]):
                out[at] = data[p][k]
                at += 1
    return out, offsets


@cached_njit(nogil=True)
def _parse_ints(data: Bytes, starts: Ints, ends: Ints) -> Any:
    values = np.zeros(len(starts), np.int64)
    bad = np.zeros(len(starts), np.bool_)
    for i in range(len(starts)):
        at, end = starts[i], ends[i]
        while at < end and data[at] == 32:
            at += 1
        while end > at and data[end - 1] == 32:
            end -= 1
        negative = at < end and data[at] == 45
        if at < end and (data[at] == 45 or data[at] == 43):
            at += 1
        if at == end or end - at > 19:
            bad[i] = True
            continue
        value = np.uint64(0)
        for k in range(at, end):
            if data[k] < 48 or data[k] > 57:
                bad[i] = True
                break
            value = value * np.uint64(10) + np.uint64(data[k] - 48)
        if value > np.uint64(0x7FFFFFFFFFFFFFFF):
            bad[i] = True
        values[i] = -np.int64(value) if negative else np.int64(value)
    return values, bad
