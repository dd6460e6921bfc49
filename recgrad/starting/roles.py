"""What each column is for: label, outcome, user, item, time, input of some kind, or nothing; and why."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recgrad.data.arrow_columns import one_chunk
from recgrad.errors import DataError, nearest
from recgrad.starting.evidence import Evidence, Groups, codes_of, tells
from recgrad.starting.labels import LabelKind, is_binary, target_of
from recgrad.starting.naming import (
    CODE_NAME,
    ITEMS,
    NUMBER_NAME,
    OUTCOME,
    SEPARATORS,
    TIME_NAME,
    TIMES,
    USERS,
    WEIGHT,
)
from recgrad.starting.profile import Column, Profile, is_list, is_number, is_plain, is_text
from recgrad.starting.times import TimeFormat, time_format

MOST_WORDS = 100
"""A column of at most so many values gets a vocabulary, whose words never share a row of the table."""
LEAK_AUC = 0.95
_TEXT_LENGTH = 60


@dataclass
class Choice:
    """What is done with a column, and why.

    Attributes:
        column: what was seen of it.
        role: label, outcome, time, weight, ignored, or an input: category, id, number, bag, history.
        reason: for the table and the comment in the config.
        side: user, item or context, by what the value depends on.
        settings: what the feature needs: words, separator, boundaries …
    """

    column: Column
    role: str
    reason: str
    side: str = "context"
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The column's name."""
        return self.column.name


@dataclass(frozen=True)
class Asked:
    """What the user has said of the columns; empty where the data shall decide."""

    labels: tuple[str, ...] = ()
    time: str = ""
    user: str = ""
    item: str = ""
    keep: frozenset[str] = frozenset()
    ignore: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Roles:
    """The choice for every column, and which are the special ones; `labels` says what each label is."""

    choices: list[Choice]
    labels: dict[str, LabelKind]
    user: str
    item: str
    time: str
    time_format: TimeFormat | None

    def inputs(self) -> list[Choice]:
        """Columns that the model learns from."""
        return [choice for choice in self.choices if choice.role in INPUTS]


INPUTS = ("category", "id", "number", "bag", "history")


def check_asked(profile: Profile, asked: Asked) -> None:
    """Raise a DataError for names that no column has."""
    named = [*asked.labels, asked.time, asked.user, asked.item, *sorted(asked.keep), *sorted(asked.ignore)]
    known = list(profile.columns)
    for name in named:
        if name and name not in profile.columns:
            raise DataError(f"init: there is no column '{name}'{nearest(name, known)} (has: {_shown(known)})")


def _shown(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= 12 else ", ".join(names[:9]) + f" … ({len(names)} in all)"


def find_named(profile: Profile, known: Sequence[str], taken: Collection[str]) -> str:
    """The first column with one of the names that such columns have; "" for none."""
    lower = {name.lower(): name for name in profile.columns if name not in taken}
    return next((lower[name] for name in known if name in lower), "")


def find_roles(profile: Profile, asked: Asked, labels: dict[str, LabelKind]) -> Roles:
    """Decide on every column but the labels, of which it is known what they are."""
    taken = set(labels) | asked.ignore
    user = asked.user or find_named(profile, USERS, taken)
    item = asked.item or find_named(profile, ITEMS, taken | {user})
    time, form = _find_time(profile, asked, taken | {user, item})
    first = next(iter(labels))
    target = target_of(profile, first, labels[first])
    sample = profile.sample
    groups = {side: Groups(sample, name) for side, name in (("user", user), ("item", item)) if name}
    sides: dict[str, str] = {user: "user", item: "item"}
    codes: dict[str, Any] = {}
    for name, column in profile.columns.items():
        if is_plain(column.kind) or is_list(column.kind):
            codes[name] = codes_of(sample.column(name))
            shared = (side for side, group in groups.items() if group.share_one_value(codes[name]))
            sides.setdefault(name, next(shared, "context"))
    choices = []
    for name, column in profile.columns.items():
        choice = _special(column, labels, user, item, time, asked)
        choice = choice or _useless(profile, column, asked)
        if choice is None and name not in asked.keep:
            evidence = tells(sample.column(name), codes[name], target)
            choice = _leak(column, evidence, first, sides.get(name, "context"), bool(user or item))
        choice = choice or _input(profile, column, item)
        choice.side = sides.get(name, "context")
        choices.append(choice)
    return Roles(choices, labels, user, item, time, form)


def _find_time(profile: Profile, asked: Asked, taken: set[str]) -> tuple[str, TimeFormat | None]:
    if asked.time:
        values = profile.sample.column(asked.time)
        return asked.time, time_format(profile.columns[asked.time], values, strict=True)
    typed = [name for name, column in profile.columns.items() if pa.types.is_temporal(column.kind)]
    named = [find_named(profile, (known,), taken) for known in TIMES]
    for name in [*(n for n in named if n), *typed]:
        if name in taken:
            continue
        form = time_format(profile.columns[name], profile.sample.column(name), strict=False)
        if form is not None:
            return name, form
    return "", None


def _special(
    column: Column,
    labels: dict[str, LabelKind],
    user: str,
    item: str,
    time: str,
    asked: Asked,
) -> Choice | None:
    name = column.name
    if name in asked.ignore:
        return Choice(column, "ignored", "as asked")
    if name in labels:
        return Choice(column, "label", labels[name].reason)
    if name == time and name not in asked.keep:
        return Choice(column, "time", "splits the rows; no input, since new rows have new times")
    if name in (user, item) and is_plain(column.kind):
        return Choice(column, "id", f"the {'user' if name == user else 'item'}")
    return None


def _useless(profile: Profile, column: Column, asked: Asked) -> Choice | None:
    name, kind = column.name, column.kind
    if not is_plain(column.items):
        return Choice(column, "ignored", f"{kind} is a nested type that no feature reads")
    if column.distinct <= 1 and not (column.distinct == 1 and column.nulls):
        return Choice(column, "ignored", "constant" if column.distinct else "always null")
    if name in asked.keep:
        return None
    if WEIGHT.search(name) and is_number(kind):
        return Choice(column, "ignored", "looks like a weight of rows; sample_weight_fields would use it")
    if pa.types.is_temporal(kind) or TIME_NAME.search(name):
        form = time_format(column, profile.sample.column(name), strict=False)
        if form is not None or pa.types.is_temporal(kind):
            return Choice(column, "ignored", "a time: new rows have new times")
    if is_list(kind) or pa.types.is_floating(kind):
        return None
    alone = column.distinct > 0.9 * (column.rows - column.nulls) and column.rows > 1000
    if alone and (is_text(kind) or _counts_rows(profile, name)):
        return Choice(column, "ignored", "nearly each row has a value of its own")
    if is_text(kind):
        length = pc.mean(pc.utf8_length(profile.sample.column(name))).as_py() or 0
        if length > _TEXT_LENGTH and column.distinct > 1000:
            return Choice(column, "ignored", f"free text ({length:.0f} letters on average)")
    return None


def _counts_rows(profile: Profile, name: str) -> bool:
    """Whether a column of integers rises from row to row, or is called an id: the number of a row."""
    values = profile.sample.column(name).drop_null().to_numpy()
    rises = len(values) > 1 and bool((np.diff(values) > 0).mean() > 0.95)
    return rises or bool(re.search(r"(^|_)(id|index|row|no|key)$", name, re.IGNORECASE))


def _leak(column: Column, evidence: Evidence, label: str, side: str, known_sides: bool) -> Choice | None:
    """An outcome of the same row, which is not known when a row is scored."""
    if is_list(column.kind):
        return None
    if evidence.auc > LEAK_AUC:
        return Choice(column, "outcome", f"tells {label} by itself (AUC {evidence.auc:.3f})")
    if side != "context":
        return None  # an attribute of the user or the item
    if evidence.implies > LEAK_AUC and evidence.lift > 1.5:
        return Choice(
            column, "outcome", f"where it is 1, {label} is {evidence.implied} ({evidence.implies:.1%})"
        )
    if OUTCOME.search(column.name) and (is_number(column.kind) or is_binary(column)):
        how = "differs between rows of a user and of an item" if known_sides else "not known beforehand"
        return Choice(column, "outcome", f"named like an outcome; {how}")
    return None


def _input(profile: Profile, column: Column, item: str) -> Choice:
    """An input, by type and number of values."""
    kind, distinct = column.kind, column.distinct
    values = profile.sample.column(column.name)
    if is_list(kind):
        return _list_input(profile, column, item)
    if is_text(kind):
        separator = _separator(values)
        if separator:
            return Choice(
                column,
                "bag",
                f"several values, separated by {separator!r}",
                settings={"separator": separator},
            )
    whole = pa.types.is_integer(kind) or pa.types.is_boolean(kind) or is_text(kind)
    if distinct <= MOST_WORDS and (whole or distinct <= 20) and not pa.types.is_floating(kind):
        counts = sorted(pc.value_counts(values.drop_null()).to_pylist(), key=lambda entry: -entry["counts"])
        words = [_word(entry["values"]) for entry in counts if _word(entry["values"]) != ""]
        if words:
            return Choice(column, "category", f"{distinct} values", settings={"words": words[:MOST_WORDS]})
    if is_text(kind):
        return Choice(column, "id", f"about {distinct:,} texts")
    if pa.types.is_integer(kind) and _is_id(column):
        return Choice(column, "id", f"about {distinct:,} values")
    reason = f"a number from {_short(column.low)} to {_short(column.high)}"
    if pa.types.is_integer(kind) and distinct < column.rows / 20:
        return Choice(column, "number", f"{reason}, or a code: both", settings={"also_id": True})
    return Choice(column, "number", reason)


def _word(value: Any) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _is_id(column: Column) -> bool:
    """Whether integers name things: by their name, or since they are large and far apart."""
    if CODE_NAME.search(column.name):
        return True
    if NUMBER_NAME.search(column.name):
        return False
    span = (column.high or 0) - (column.low or 0)
    return bool(column.low is not None and column.low >= 0 and span > 10_000_000 and column.distinct > 1000)


def _separator(values: pa.ChunkedArray) -> str:
    """What separates several values in texts; "" where each text is one value."""
    texts = values.drop_null()[:20_000]
    if not len(texts):
        return ""
    wholes = len(texts.unique())
    for separator in SEPARATORS:
        with_it = pc.sum(pc.match_substring(texts, separator)).as_py() or 0
        if with_it < max(2, 0.01 * len(texts)):
            continue
        parts = pc.list_flatten(pc.split_pattern(texts, separator))
        parts = pc.utf8_trim_whitespace(parts)
        distinct = parts.unique()
        short = (pc.mean(pc.utf8_length(parts)).as_py() or 0) <= 24
        words = separator != " " or bool(pc.all(pc.utf8_is_digit(distinct)).as_py())
        if short and words and (len(distinct) < wholes or len(distinct) < 0.5 * len(parts)):
            return separator
    return ""


def _list_input(profile: Profile, column: Column, item: str) -> Choice:
    if pa.types.is_floating(column.items):
        lengths = pc.list_value_length(profile.sample.column(column.name)).unique().drop_null()
        if len(lengths) == 1 and lengths[0].as_py():
            width = lengths[0].as_py()
            return Choice(column, "number", f"vectors of {width} numbers", settings={"width": width})
        return Choice(column, "ignored", "lists of numbers of several lengths")
    if item and profile.columns[item].items == column.items:
        known = profile.sample.column(item).unique()
        flat = one_chunk(profile.sample.column(column.name)).flatten()
        inside = pc.mean(pc.is_in(flat, known).cast("double"))
        if (inside.as_py() or 0) > 0.5:
            return Choice(column, "history", f"items like {item}", settings={"item": item})
    return Choice(column, "bag", f"lists of about {column.distinct:,} values", settings={})


def choose_attributes(profile: Profile, others: Collection[str]) -> list[Choice]:
    """What is done with the columns of a table of items but `others`: none of them is an outcome."""
    choices = []
    for name, column in profile.columns.items():
        if name not in others:
            choice = _useless(profile, column, Asked()) or _input(profile, column, "")
            if column.distinct <= 1:  # null is an item that the table has not
                choice = Choice(column, "ignored", "constant")
            choice.side = "item"
            choices.append(choice)
    return choices


def event_columns(schema: pa.Schema, user: str, item: str, time: str) -> tuple[str, str, str]:
    """The columns of user, item and time of a log of events: those named, else those with usual names."""
    columns = {name: Column(name, schema.field(name).type) for name in schema.names}
    profile = Profile(columns, schema.empty_table(), 0)
    check_asked(profile, Asked((), time, user, item))
    user = user or find_named(profile, USERS, ())
    item = item or find_named(profile, ITEMS, {user})
    for what, name in (("user", user), ("item", item)):
        if not name:
            raise DataError(
                f"init: which column holds the {what}? Name it with --{what} (has: {_shown(schema.names)})"
            )
    usable = [n for n in TIMES if n in columns and not is_text(columns[n].kind)]
    return user, item, time or next(iter(usable), "")
