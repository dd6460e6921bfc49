"""From values to ids: num_buckets, hash_bucket_size, vocabularies and boundaries.

Each takes the values of a column (numbers or texts) and gives one int64 id for each, noting
values that have none as faults.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from recgrad.data.features.columns import Values
from recgrad.data.features.text import Mask, Text, parse_ints
from recgrad.data.hashes import DEFAULT_HASH, HASHES
from recgrad.data.hashing import Bytes, Ints, buckets_of, hash_spans, xxh64
from recgrad.errors import system_reason, whole_path
from recgrad.kernels import cached_njit

Report = Callable[[Any, str, Any, str], None]
"""Notes a fault: positions or mask of the bad values, reason, the values, remedy."""


class Bucketizer(Protocol):
    """Turns values into ids below `num_rows`."""

    num_rows: int

    def __call__(self, values: Values, report: Report) -> Ints:
        """The id of each value."""


def whole_numbers(values: Values, report: Report) -> Ints:
    """Values as int64; texts that are no integers and numbers with a fraction are faults."""
    if isinstance(values, Text):
        numbers, bad = parse_ints(values)
        if bad.any():
            report(
                bad,
                "{value} is not a 64-bit integer",
                values.take(bad),
                "use hash_bucket_size or a vocabulary for text, or mend the column",
            )
        return numbers
    if values.dtype.kind == "f":
        with np.errstate(invalid="ignore"):
            numbers = values.astype(np.int64)
        # 2⁶³ is the first float beyond int64.
        bad = ~((numbers == values) & (np.abs(values) < 2.0**63))
        if bad.any():
            report(bad, "id {value} is not a whole number", values[bad], "store ids as integers or text")
            numbers = np.where(bad, 0, numbers)
        return numbers
    return values


def check_range(ids: Ints, size: int, limit: str, report: Report) -> None:
    """Note ids outside 0 … size − 1 as faults; `limit` is the setting that says size."""
    if not len(ids) or ids.view(np.uint64).max() < size:
        return
    low, high = ids < 0, ids >= size
    remedy = "check the column, or leave such rows null"
    report(low, "id {value} is negative; ids are 0 … " + str(size - 1), ids[low], remedy)
    remedy = f"raise {limit} above the largest id, or hash ids with hash_bucket_size"
    report(high, "id {value} is outside " + f"{limit} {size}", ids[high], remedy)


class NumBuckets:
    """Ids are the integers of the column, below `size`."""

    def __init__(self, size: int, limit: str = "num_buckets") -> None:
        if size < 1:
            raise ValueError(f"{limit} must be at least 1, got {size}")
        self.num_rows = size
        self.limit = limit

    def __call__(self, values: Values, report: Report) -> Ints:
        """The integers themselves."""
        ids = whole_numbers(values, report)
        check_range(ids, self.num_rows, self.limit, report)
        return ids


class HashBuckets:
    """Ids are the hash of the value's text modulo `size`."""

    def __init__(self, size: int, hash: str = DEFAULT_HASH) -> None:
        if not 1 <= size < 2**63:
            raise ValueError(f"hash_bucket_size must be between 1 and 2^63 − 1, got {size}")
        self.num_rows = size
        self.hash = hash
        self._hash = HASHES[hash]

    def __call__(self, values: Values, report: Report) -> Ints:
        """Hash mod size; integers hash as their decimal text."""
        if isinstance(values, Text):
            return self._hash.buckets(values.data, values.starts, values.ends, self.num_rows)
        return buckets_of(self._hash.ints(whole_numbers(values, report)), self.num_rows)


class Vocabulary:
    """Ids are a word's number in a list or dictionary; unknown words share one id.

    Args:
        ids: the number of each word.
        unknown: the id of words that are not there.
        num_rows: at least the largest id + 1.

    Attributes:
        words: the words.
        word_ids: their ids.
        slots: where a word is found by its XXH64: numbers of words, −1 where there is none.
    """

    def __init__(self, ids: Mapping[str, int], unknown: int, num_rows: int) -> None:
        if not ids:
            raise ValueError("a vocabulary must have at least one word")
        highest = max(max(ids.values()), unknown)
        if min(ids.values()) < 0 or unknown < 0:
            raise ValueError("ids of a vocabulary must not be negative")
        self.num_rows = max(num_rows, highest + 1)
        self.unknown = unknown
        self.words = Text.of_words(list(ids))
        self.word_ids = np.fromiter(ids.values(), np.int64, len(ids))
        size = 1 << max(3, (2 * len(ids) - 1).bit_length())
        self.slots = _fill_slots(
            hash_spans(self.words.data, self.words.starts, self.words.ends), np.full(size, -1, np.int64)
        )

    def __call__(self, values: Values, report: Report) -> Ints:
        """The number of each word; integers are looked up as their decimal text."""
        if not isinstance(values, Text):
            values = Text.of_ints(whole_numbers(values, report))
        words = self.words
        found: Ints = _find(
            values.data, values.starts, values.ends, words.data, words.starts, words.ends, self.slots
        )
        return np.where(found >= 0, self.word_ids[found], self.unknown)


class Boundaries:
    """Ids are the number of boundaries that are not above the value: [b₀, b₁) is 1."""

    def __init__(self, boundaries: Sequence[float]) -> None:
        edges = np.asarray(boundaries, np.float64)
        if not len(edges) or not (np.diff(edges) > 0).all():
            raise ValueError(f"boundaries must be rising numbers, got {list(boundaries)}")
        self.num_rows = len(edges) + 1
        # float32 values are compared with float32 edges: 0.7 in a file is then the edge 0.7.
        self.double, self.single = edges, edges.astype(np.float32)

    def __call__(self, values: npt.NDArray[Any]) -> Ints:
        """The bucket of each number."""
        edges = self.single if values.dtype == np.float32 else self.double
        ids: Ints = np.searchsorted(edges, values, "right")
        return ids


def vocabulary_of_list(words: Sequence[str], default: str, unknown: int | None) -> Vocabulary:
    """A vocab_list as numbers.

    Without `unknown` (default_bucketize_value): 0 is the default value, 1 any other word, and the
    list begins at 2; a default value that is in the list has its number there. With it: the list
    begins at 0 and other words are `unknown`.
    """
    seen: set[str] = set()
    for word in words:
        if word in seen:
            raise ValueError(f"vocab_list must name each word once, got {word!r} twice")
        seen.add(word)
    if unknown is not None:
        return Vocabulary({word: i for i, word in enumerate(words)}, unknown, len(words))
    ids = {default: 0} if default else {}
    ids.update((word, i + 2) for i, word in enumerate(words))
    return Vocabulary(ids, 1, len(words) + 2)


def vocabulary_of_dict(numbers: Mapping[str, int], default: str, unknown: int | None) -> Vocabulary:
    """A vocab_dict as it is; without `unknown` the default value is 0 and other words are 1."""
    if unknown is not None:
        return Vocabulary(numbers, unknown, 0)
    return Vocabulary({**numbers, **({default: 0} if default else {})}, 1, 2)


def vocabulary_of_file(path: str, default: str, unknown: int | None) -> Vocabulary:
    """A vocab_file: a word a line, numbered from 0, or `word number` lines. UTF-8."""
    if unknown is None:
        raise ValueError("vocab_file needs default_bucketize_value, the id of words that are not in the file")
    if os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"vocab_file '{path}' cannot be read: it is not a regular file")
    try:
        with open(path, encoding="utf-8") as file:
            lines = [line.rstrip("\r\n") for line in file]
    except OSError as error:
        raise ValueError(
            f"vocab_file '{path}'{whole_path(path)} cannot be read: {system_reason(error)}"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(f"vocab_file '{path}' is not UTF-8: {error}") from error
    lines = [line for line in lines if line]
    pairs = [line.rsplit(" ", 1) for line in lines]
    if pairs and all(len(pair) == 2 and pair[1].isdecimal() for pair in pairs):
        numbers = {word: int(number) for word, number in pairs}
        if len(numbers) < len(pairs):
            raise ValueError(
                f"vocab_file '{path}' must name each word once, {len(pairs)} lines name {len(numbers)}"
            )
        return vocabulary_of_dict(numbers, default, unknown)
    return vocabulary_of_list(lines, default, unknown)


@cached_njit(nogil=True)
def _fill_slots(hashes: npt.NDArray[np.uint64], slots: Ints) -> Ints:
    """Open addressing with linear probing; the number of slots is a power of two, over half empty."""
    last = np.uint64(len(slots) - 1)
    for i in range(len(hashes)):
        at = hashes[i] & last
        while slots[at] >= 0:
            at = (at + np.uint64(1)) & last
        slots[at] = i
    return slots


@cached_njit(nogil=True)
def _find(
    data: Bytes, starts: Ints, ends: Ints, words: Bytes, word_starts: Ints, word_ends: Ints, slots: Ints
) -> Ints:
    """The index of each span among the words, or −1."""
    found = np.full(len(starts), -1, np.int64)
    last = np.uint64(len(slots) - 1)
    for i in range(len(starts)):
        at = xxh64(data, starts[i], ends[i]) & last
        size = ends[i] - starts[i]
        while slots[at] >= 0:
            word = slots[at]
            same = word_ends[word] - word_starts[word] == size
            k = 0
            while same and k < size:
                same = words[word_starts[word] + k] == data[starts[i] + k]
                k += 1
            if same:
                found[i] = word
                break
            at = (at + np.uint64(1)) & last
    return found


__all__ = [
    "Boundaries",
    "Bucketizer",
    "HashBuckets",
    "Mask",
    "NumBuckets",
    "Report",
    "Vocabulary",
    "check_range",
    "vocabulary_of_dict",
    "vocabulary_of_file",
    "vocabulary_of_list",
    "whole_numbers",
]
