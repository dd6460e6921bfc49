"""The last step of every feature: bags of values become ids or float vectors.

Empty bags take the default value here. A default is given as the column would have it: it is
bucketized, but not normalized.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from recgrad.data.features.buckets import Boundaries, Bucketizer, Report
from recgrad.data.features.columns import Bags, Values
from recgrad.data.features.text import Text, halve, parse_floats
from recgrad.data.hashing import Ints
from recgrad.kernels import cached_njit

Float32s = npt.NDArray[np.float32]
Normalizer = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]


@dataclass(frozen=True)
class Sparse:
    """Ids in bags; `lengths` is None when each bag holds one. `row_offsets` for sequences."""

    values: Ints
    lengths: npt.NDArray[np.int32] | None
    weights: Float32s | None = None
    row_offsets: Ints | None = None

    def bags(self) -> Bags:
        """The ids as values again, for features that read this one."""
        if self.lengths is None:
            return Bags(self.values)
        offsets = np.zeros(len(self.lengths) + 1, np.int64)
        np.cumsum(self.lengths, out=offsets[1:])
        return Bags(self.values, offsets)


@dataclass(frozen=True)
class Dense:
    """Float vectors: float32 [bags, width]. `row_offsets` for sequences."""

    values: Float32s
    row_offsets: Ints | None = None

    def bags(self) -> Bags:
        """The floats as values again, for features that read this one."""
        width = self.values.shape[1]
        offsets = None if width == 1 else np.arange(0, self.values.size + 1, width)
        return Bags(self.values.reshape(-1), offsets)


def refuse(_: Any, reason: str, values: Any, remedy: str) -> None:
    """A Report for settings: the first bad value is an error of the config."""
    if len(values):
        value = values[0].item() if isinstance(values, np.ndarray) else values[0]
        raise ValueError(
            f"the default value cannot be used: {reason.replace('{value}', repr(value))}; {remedy}"
        )


class IdOutput:
    """Ids of values.

    Args:
        bucketizer: gives the ids.
        default: text of the default values, cut as the column is; None or [] leaves bags empty.
        value_dim: ids kept of a bag, the first ones; 0 keeps all.
        weighted: default values are `id:weight`, too.
        exact: a bag with any other number of ids than value_dim (or none) is a fault.
    """

    def __init__(
        self,
        bucketizer: Bucketizer,
        default: list[str] | None,
        value_dim: int,
        weighted: bool = False,
        exact: bool = False,
    ) -> None:
        self.exact = exact
        self.bucketizer = bucketizer
        self.value_dim = value_dim
        self.default_ids = np.empty(0, np.int64)
        self.default_weights = np.empty(0, np.float32)
        if default:
            text = Text.of_words(default)
            weights = np.ones(len(text))
            if weighted:
                text, weight_text, has = halve(text, ":")
                weights = np.where(has, parse_floats(weight_text)[0], 1.0) if has.any() else weights
            self.default_ids = bucketizer(text, refuse)[: value_dim or None]
            self.default_weights = weights.astype(np.float32)[: value_dim or None]

    @property
    def has_default(self) -> bool:
        """Whether empty bags are filled."""
        return len(self.default_ids) > 0

    def __call__(self, bags: Bags, report: Report) -> Sparse:
        """The ids of each bag."""
        ids = self.bucketizer(bags.values, report)
        weights = bags.weights
        if bags.offsets is None:
            return Sparse(ids, None, weights)
        offsets = bags.offsets
        lengths = np.diff(offsets)
        if self.exact:
            wrong = (lengths != self.value_dim) & (lengths > 0)
            report_lengths(wrong, lengths, self.value_dim, report)
        if self.value_dim and len(lengths) and lengths.max() > self.value_dim:
            keep = np.arange(len(ids)) - np.repeat(offsets[:-1], lengths) < self.value_dim
            ids, weights = ids[keep], None if weights is None else weights[keep]
            lengths = np.minimum(lengths, self.value_dim)
            offsets = np.concatenate([[0], np.cumsum(lengths)])
        if not self.has_default:
            single = len(ids) == len(lengths) and bool((lengths == 1).all())
            return Sparse(ids, None if single else lengths.astype(np.int32), weights)
        if weights is not None:
            weights = fill_empty(weights, offsets, self.default_weights)[0]
        ids, counts, single = fill_empty(ids, offsets, self.default_ids)
        return Sparse(ids, None if single else counts, weights)


@cached_njit(nogil=True)
def fill_empty(values: Any, offsets: Any, default: Any) -> Any:
    """Values with the default in each empty bag, the bags' lengths, and whether all are 1."""
    bags, count = len(offsets) - 1, len(default)
    lengths = np.empty(bags, np.int32)
    empty, ones = 0, 0
    for i in range(bags):
        length = offsets[i + 1] - offsets[i]
        empty += length == 0
        length = length if length > 0 else count
        ones += length == 1
        lengths[i] = length
    filled = np.empty(len(values) + empty * count, values.dtype)
    at = 0
    for i in range(bags):
        if offsets[i] == offsets[i + 1]:
            for k in range(count):
                filled[at + k] = default[k]
            at += count
        for k in range(offsets[i], offsets[i + 1]):
            filled[at] = values[k]
            at += 1
    return filled, lengths, ones == bags


def numbers_of(values: Values, report: Report) -> npt.NDArray[Any]:
    """Values as floats (integers stay integers); texts that are no numbers are faults."""
    if not isinstance(values, Text):
        return values
    numbers, bad = parse_floats(values)
    if bad.any():
        report(bad, "{value} is not a number", values.take(bad), "mend the column, or leave such rows null")
        numbers = np.where(bad, 0.0, numbers)
    return numbers


class FloatOutput:
    """Float vectors, or ids of the buckets between boundaries.

    Args:
        normalizer: applied to values that are there, not to defaults.
        boundaries: make ids; None keeps floats.
        default: texts of the default vector (one for all places, or value_dim of them); None or []
            allows no missing floats, and leaves bags of ids empty.
        value_dim: values of a row; 0 allows any number, for ids only.
        remedy: what to do about a missing value.
    """

    def __init__(
        self,
        normalizer: Normalizer | None,
        boundaries: Boundaries | None,
        default: list[str] | None,
        value_dim: int,
        remedy: str,
    ) -> None:
        self.normalizer = normalizer
        self.boundaries = boundaries
        self.value_dim = value_dim if boundaries is not None else max(value_dim, 1)
        self.remedy = remedy
        self.double = False  # keep float64: whole seconds since 1970 have no room in float32
        self.default = np.empty(0, np.float64)
        if default:
            text = Text.of_words(default)
            self.default = numbers_of(text, refuse)
            if not np.isfinite(self.default).all():
                raise ValueError(f"a default value must be finite, got {default}")
            if len(self.default) == 1 and self.value_dim > 1:
                self.default = np.repeat(self.default, self.value_dim)
            if self.value_dim and len(self.default) != self.value_dim:
                raise ValueError(
                    f"a default value must have value_dim {self.value_dim} numbers, got {len(self.default)}"
                )

    @property
    def has_default(self) -> bool:
        """Whether missing values are filled."""
        return len(self.default) > 0

    def __call__(self, bags: Bags, report: Report) -> Sparse | Dense:
        """The vector, or the buckets, of each bag."""
        given = values = numbers_of(bags.values, report)
        if self.normalizer is not None:
            with np.errstate(all="ignore"):
                values = self.normalizer(values)
        double = values.astype(np.float64) if self.double and values.dtype != np.float32 else None
        if self.boundaries is None and values.dtype != np.float32:
            with np.errstate(over="ignore"):
                values = values.astype(np.float32)
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            values = self._without_infinities(values, given, report)
        elif double is not None:
            values = double
        values, lengths = self._fill(values, bags, report)
        if self.boundaries is not None:
            return Sparse(self.boundaries(values), lengths)
        return Dense(values.reshape(-1, self.value_dim))

    def _without_infinities(
        self, values: npt.NDArray[Any], given: npt.NDArray[Any], report: Report
    ) -> npt.NDArray[Any]:
        """Values that are not finite reported as the column has them, and set to 0."""
        bad = ~np.isfinite(values)
        given_bad = ~np.isfinite(given)
        remedy = "mend the column, or leave such rows null"
        report(given_bad, "{value} is not a finite number", given[given_bad], remedy)
        made = bad & ~given_bad
        if self.normalizer is not None:
            report(made, "the normalizer makes no finite number of {value}", given[made], "change normalizer")
        else:
            report(made, "{value} is too large for a 32-bit float", given[made], "scale it by a normalizer")
        return np.where(bad, values.dtype.type(0), values)

    def _fill(
        self, values: npt.NDArray[Any], bags: Bags, report: Report
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int32] | None]:
        """Defaults put in, and every bag brought to value_dim values where that is asked for."""
        if bags.offsets is None and self.value_dim <= 1:
            return values, None
        if self.has_default and values.dtype.kind != "f":
            values = values.astype(np.float64)
        values, lengths, single = fill_empty(values, bags.starts, self.default.astype(values.dtype))
        if self.value_dim and not (single and self.value_dim == 1):
            wrong = lengths != self.value_dim
            if self.boundaries is not None:
                wrong &= bags.lengths > 0
            if wrong.any():
                missing = wrong & (lengths == 0)
                none = np.full(missing.sum(), None)
                report(BagIndex(np.flatnonzero(missing)), "a value is missing", none, self.remedy)
                report_lengths(wrong & (lengths > 0), lengths, self.value_dim, report)
                return np.zeros(len(lengths) * self.value_dim, values.dtype), None
        return values, None if single else lengths


def report_lengths(wrong: Any, lengths: npt.NDArray[Any], value_dim: int, report: Report) -> None:
    """Note bags with values, but not value_dim of them."""
    bags = np.flatnonzero(wrong)
    report(
        BagIndex(bags),
        "has {value} values, not value_dim " + str(value_dim),
        lengths[bags],
        "make all rows equally long, or set value_dim to their length",
    )


@dataclass(frozen=True)
class BagIndex:
    """Marks positions given to a Report as bags, not values."""

    index: Ints
