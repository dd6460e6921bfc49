"""Keys looked up in the maps of their rows."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recgrad.data.arrow_columns import as_array
from recgrad.data.features.buckets import Report, whole_numbers
from recgrad.data.features.columns import Bags, Values
from recgrad.data.features.functions import fold
from recgrad.data.features.text import Text
from recgrad.data.hashing import Bytes, Ints
from recgrad.kernels import cached_njit

COMBINERS = ("sum", "mean", "avg", "min", "max", "count")
_UNDEFINED = ("gap_min", "gap_max")


def texts_of(values: Values, report: Report) -> Text:
    """Values as text; integers are written in decimal."""
    return values if isinstance(values, Text) else Text.of_ints(whole_numbers(values, report))


def keys_of(values: Values, report: Report) -> Text:
    """Keys of maps as text; numbers are written as short as they can be, 12.0 as 12 and 2.50 as 2.5."""
    if isinstance(values, Text) or values.dtype.kind != "f":
        return texts_of(values, report)
    missing = np.isnan(values)
    if missing.any():
        report(missing, "key {value} is not a number", values[missing], "leave such rows null")
    whole = (np.floor(values) == values) & (np.abs(values) < 2.0**63)
    texts = as_array(values).cast(pa.large_string())
    if whole.any():  # Arrow writes large ones with an exponent
        numbers = as_array(np.where(whole, values, 0).astype(np.int64)).cast(pa.large_string())
        texts = pc.if_else(as_array(whole), numbers, texts)
    return Text.of(texts)


def find_in_bags(needles: Bags, hay: Bags) -> Ints:
    """For each value of `needles`, the last equal value of the same bag of `hay`, or −1.

    Both hold texts, or both integers.
    """
    if isinstance(needles.values, Text) and isinstance(hay.values, Text):
        a, b = needles.values, hay.values
        found: Ints = _find_texts(
            a.data, a.starts, a.ends, needles.starts, b.data, b.starts, b.ends, hay.starts
        )
        return found
    assert not isinstance(needles.values, Text)
    assert not isinstance(hay.values, Text)
    found = _find_ints(needles.values, needles.starts, hay.values, hay.starts)
    return found


def combine(bags: Bags, combiner: str) -> Bags:
    """Each bag's numbers made one by one of COMBINERS; empty bags stay empty."""
    assert not isinstance(bags.values, Text)
    if bags.offsets is None:
        return Bags(np.ones(len(bags.values))) if combiner == "count" else bags
    lengths = np.diff(bags.offsets)
    full = lengths > 0
    values = np.ones(len(bags.values)) if combiner == "count" else bags.values.astype(np.float64)
    ufunc = {"min": np.minimum, "max": np.maximum}.get(combiner, np.add)
    result = fold(ufunc, bags.offsets, values, 0.0)
    if combiner in ("mean", "avg"):
        result[full] /= lengths[full]
    if full.all():
        return Bags(result)
    return Bags(result[full], np.concatenate([[0], np.cumsum(full)]))


def check_combiner(combiner: str, *, optional: bool) -> str:
    """The combiner in lower case; "" means none where that is allowed."""
    lower = combiner.lower()
    if lower in _UNDEFINED:
        raise ValueError(f"combiner {combiner!r} is not available: what it computes is published nowhere")
    if lower not in COMBINERS and not (optional and not lower):
        raise ValueError(f"combiner must be one of {', '.join(COMBINERS)}, got {combiner!r}")
    return lower


@numba.njit(inline="always")
def same_bytes(a: Any, a_start: Any, a_end: Any, b: Any, b_start: Any, b_end: Any) -> Any:
    """Whether two spans hold the same bytes."""
    if a_end - a_start != b_end - b_start:
        return False
    for k in range(a_end - a_start):  # noqa: SIM110 (numba has no all() of a generator)
        if a[a_start + k] != b[b_start + k]:
            return False
    return True


@cached_njit(nogil=True)
def _find_texts(
    a: Bytes, a_starts: Ints, a_ends: Ints, a_bags: Ints, b: Bytes, b_starts: Ints, b_ends: Ints, b_bags: Ints
) -> Ints:
    found = np.full(len(a_starts), -1, np.int64)
    for bag in range(len(a_bags) - 1):
        for i in range(a_bags[bag], a_bags[bag + 1]):
            for j in range(b_bags[bag + 1] - 1, b_bags[bag] - 1, -1):
                if same_bytes(a, a_starts[i], a_ends[i], b, b_starts[j], b_ends[j]):
                    found[i] = j
                    break
    return found


@cached_njit(nogil=True)
def _find_ints(a: Ints, a_bags: Ints, b: Ints, b_bags: Ints) -> Ints:
    found = np.full(len(a), -1, np.int64)
    for bag in range(len(a_bags) - 1):
        for i in range(a_bags[bag], a_bags[bag + 1]):
            for j in range(b_bags[bag + 1] - 1, b_bags[bag] - 1, -1):
                if a[i] == b[j]:
                    found[i] = j
                    break
    return found
