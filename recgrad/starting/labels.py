"""What a label column is: two values, classes or a number; and what is known of it in each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recgrad.data.arrow_columns import one_chunk, without_dictionary
from recgrad.data.readers.reader import Reader
from recgrad.errors import DataError
from recgrad.starting.naming import LABELS, OUTCOME, RATING
from recgrad.starting.profile import Column, Profile, is_number, is_plain, is_text

MOST_CLASSES, MOST_TEXTS = 50, 200
"""Whole numbers, and texts, that are learned as classes."""


@dataclass(frozen=True)
class LabelKind:
    """What a label is.

    Attributes:
        positive: the value that counts as 1 where that must be said.
        classes: how many it has; 0 for a number to be predicted.
        names: of the classes, where they are texts, in the order of their numbers.
        blank: some rows have an empty text, which is no class.
    """

    positive: str = ""
    classes: int = 2
    names: tuple[str, ...] = ()
    blank: bool = False

    @property
    def reason(self) -> str:
        """For the table of columns."""
        if self.positive:
            return f"learned; 1 for {self.positive!r}"
        if not self.classes:
            return "learned; a number (regression)"
        return f"learned; {self.classes} classes" if self.classes > 2 or self.names else "learned"


def label_candidates(profile: Profile) -> list[str]:
    """Columns that may be the label: two values, the likeliest names first."""
    binary = [name for name, column in profile.columns.items() if is_binary(column)]
    by_name = [name for known in LABELS for name in binary if name.lower() == known]
    return by_name + [name for name in binary if name not in by_name and OUTCOME.search(name)]


def is_binary(column: Column) -> bool:
    """Whether a column has two values that may be no and yes."""
    if not is_plain(column.kind) or column.distinct != 2:
        return False
    if is_text(column.kind) or pa.types.is_boolean(column.kind):
        return True
    return (column.low, column.high) in ((0, 1), (-1, 1))


def check_label(profile: Profile, name: str) -> str:
    """The value that counts as 1 where that must be said; "" for labels that are 0 and 1."""
    column = profile.columns[name]
    if not is_plain(column.kind):
        raise DataError(f"init: label '{name}' is {column.kind}; a label is a number or a text")
    if column.distinct < 2:
        value = profile.sample.column(name).drop_null()
        shown = f" ({value[0].as_py()!r} in every row)" if len(value) else " (it is null in every row)"
        raise DataError(f"init: label '{name}' is constant{shown}, so nothing can be learned; choose another")
    if is_binary(column) and not is_text(column.kind) and column.low != -1:
        return ""
    if column.distinct != 2:
        if not is_number(column.kind) and not is_text(column.kind):
            raise DataError(
                f"init: label '{name}' has {column.distinct} values of {column.kind}; a label is a number or "
                "a text: make one of it, or choose another with --label"
            )
        return ""
    counts = pc.value_counts(profile.sample.column(name).drop_null()).to_pylist()
    if column.low == -1:
        return "1"
    return str(min(counts, key=lambda entry: entry["counts"])["values"]).strip()


def number_of_classes(column: Column) -> int:
    """How many classes a label has: 2, more for whole numbers 0, 1, 2 … without a gap, 0 for a number.

    Ratings are numbers, whatever values they have: 4 is nearer to 5 than 1 is.
    """
    if column.distinct <= 2:
        return 2
    whole = pa.types.is_integer(column.kind) and column.low == 0 and column.high == column.distinct - 1
    return (
        column.distinct if whole and column.distinct <= MOST_CLASSES and not RATING.search(column.name) else 0
    )


def distinct_texts(readers: Sequence[Reader], column: Column) -> set[str]:
    """The texts of a label; all rows are read, for a class may be rare."""
    found: set[str] = set()
    for reader in readers:
        for fragment in reader.fragments:
            for block in reader.read(fragment, [column.name]):
                texts = one_chunk(without_dictionary(block.table.column(column.name))).drop_null()
                found.update(texts.cast(pa.string()).unique().to_pylist())
                if len(found) > MOST_TEXTS + 1:
                    raise DataError(
                        f"init: label '{column.name}' has about {column.distinct:,} texts, and {MOST_TEXTS} "
                        "are learned as classes; join rare ones into one, or choose another with --label"
                    )
    return found


def find_kind(profile: Profile, readers: Sequence[Reader], name: str) -> LabelKind:
    """What a label is.

    Args:
        profile: of all columns.
        readers: of all rows that the config will read.
        name: the label.

    Raises:
        DataError: it cannot be learned.
    """
    positive = check_label(profile, name)
    column = profile.columns[name]
    if not is_text(column.kind) or column.distinct <= 2:
        return LabelKind(positive, number_of_classes(column))
    texts = distinct_texts(readers, column)
    names = tuple(sorted({text.strip() for text in texts if text}))
    if len(names) < 2:
        raise DataError(
            f"init: label '{name}' is constant ({names[0]!r}, but for spaces, in every row), so nothing can "
            "be learned; choose another"
        )
    return LabelKind(positive, len(names), names, "" in texts)


def _upper_half(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """1 for what is above the median, so that what gives the label away is found as for two values."""
    middle = np.nanmedian(values)
    middle = middle if middle < np.nanmax(values) else np.nanmin(values)
    return np.where(np.isnan(values), np.nan, (values > middle).astype(np.float64))


def target_of(profile: Profile, name: str, kind: LabelKind) -> np.ndarray[Any, Any]:
    """The label of each row of the sample, 0 or 1; NaN for null.

    Of classes with names it is whether a row has the commonest, of other numbers whether it is high.
    """
    column = profile.sample.column(name)
    found = column
    if kind.positive or kind.names:
        text = pc.utf8_trim_whitespace(column.cast(pa.string()))
        found = pc.equal(text, kind.positive or _commonest(text))
    values: np.ndarray[Any, Any] = np.asarray(found.cast(pa.float64()).to_numpy(zero_copy_only=False))
    return values if kind.classes == 2 or kind.names else _upper_half(values)


def _commonest(texts: pa.ChunkedArray) -> str:
    counts = pc.value_counts(texts.drop_null()).to_pylist()
    return str(max(counts, key=lambda entry: entry["counts"])["values"])
