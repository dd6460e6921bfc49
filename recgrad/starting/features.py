"""Lines of `feature_configs` for the columns that a model learns from."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from recgrad.config.messages import shortest_float
from recgrad.starting.profile import Profile, is_list
from recgrad.starting.roles import INPUTS, Choice, Roles

NORMALIZED = "_norm"
"""What the names of normalized numbers end in; the FM has none of them."""
WIDTH = 16
"""The embedding_dim of every feature."""
CODE = "_id"
"""What the names of numbers that may be codes end in."""
_BUCKETS = 32
_HISTORY_LENGTH = 50
_MOST_VOCABULARIES = 500


def feature_lines(profile: Profile, roles: Roles) -> Iterator[str]:
    """A line for each feature, with the reason behind it."""
    item = roles.item if _histories(roles) else ""
    return (line for _, _, line in named_lines(profile, roles.choices, item))


def named_lines(
    profile: Profile, choices: Sequence[Choice], item: str = ""
) -> Iterator[tuple[Choice, str, str]]:
    """The features of all inputs: the choice behind each, its name, and its line.

    Args:
        profile: of the columns.
        choices: for them.
        item: the column of items, where there are histories of them.
    """
    inputs = [choice for choice in choices if choice.role in INPUTS]
    words = len(inputs) <= _MOST_VOCABULARIES
    for choice in inputs:
        for kind, settings in _features(profile, item, choice, words):
            fields = " ".join(f"{name}: {_value(value)}" for name, value in settings.items())
            line = f"feature_configs {{ {kind} {{ {fields} }} }}  # {_comment(choice)}\n"
            yield choice, settings["feature_name"], line


def bucket_size(distinct: int) -> int:
    """Rows of a hashed table: enough that few of the values share one; a round number."""
    wanted = max(1000, distinct * (8 if distinct < 1_000_000 else 3))
    step = 10 ** (len(str(wanted)) - 1)
    return int(-(-wanted // step) * step)


def _features(
    profile: Profile, item: str, choice: Choice, words: bool
) -> Iterator[tuple[str, dict[str, Any]]]:
    name, settings = choice.name, choice.settings
    common = {"feature_name": name, "expression": f"{choice.side}:{name}"}
    if choice.role == "category" and words:
        yield "id_feature", {**common, "vocab_list": settings["words"]}
    elif choice.role in ("category", "id"):
        shared = {"embedding_name": f"{name}_emb"} if name == item else {}
        yield "id_feature", {**common, "hash_bucket_size": bucket_size(choice.column.distinct), **shared}
    elif choice.role == "bag":
        separator = {"separator": settings["separator"]} if "separator" in settings else {}
        size = bucket_size(choice.column.distinct)
        yield "id_feature", {**common, "hash_bucket_size": size, **separator, "pooling": "mean"}
    elif choice.role == "history":
        size = bucket_size(profile.columns[item].distinct)
        shared = {"embedding_name": f"{item}_emb"}
        yield (
            "sequence_id_feature",
            {**common, "hash_bucket_size": size, **shared, "sequence_length": _HISTORY_LENGTH},
        )
    elif choice.role == "number":
        yield from _numbers(profile, choice, common)


def _histories(roles: Roles) -> bool:
    return any(choice.role == "history" for choice in roles.choices)


def _numbers(
    profile: Profile, choice: Choice, common: dict[str, Any]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """A number as the bucket it lies in, nulls in one of their own, and as a normalized number."""
    column = choice.column
    if is_list(column.kind):
        yield "raw_feature", {**common, "value_dim": choice.settings["width"]}
        return
    values = np.asarray(profile.sample.column(column.name).drop_null().cast(pa.float64()))
    values = values[np.isfinite(values)]
    if not len(values):
        return
    shares = np.arange(1, _BUCKETS) / _BUCKETS
    edges = sorted({shortest_float(float(np.float32(edge))) for edge in np.quantile(values, shares)})
    edges = [edge for edge in edges if edge > values.min()]
    default = {}
    if column.nulls:
        lowest = float(column.low) - max(1.0, abs(float(column.low)) * 1e-3)
        default = {"default_value": repr(shortest_float(float(np.float32(lowest))))}
        between = (lowest + float(column.low)) / 2
        edges = [shortest_float(float(np.float32(between))), *edges]
    if edges:
        yield "raw_feature", {**common, "embedding_dim": WIDTH, "boundaries": edges, **default}
    if choice.settings.get("also_id"):
        size = bucket_size(column.distinct)
        yield "id_feature", {**common, "feature_name": column.name + CODE, "hash_bucket_size": size}
    normalizer, missing = _normalizer(values)
    norm = {**common, "feature_name": column.name + NORMALIZED, "normalizer": normalizer}
    if column.nulls:
        norm["default_value"] = missing
    yield "raw_feature", norm


def _normalizer(values: Any) -> tuple[str, str]:
    """A formula that brings numbers near 0 with a spread near 1, and the value that stands for a null."""
    median = float(np.median(values))
    if values.min() >= 0 and values.max() > min(20 * max(float(values.mean()), 1e-9), 1e4):
        logs = np.log1p(values)
        mean, spread = float(logs.mean()), max(float(logs.std()), 1e-6)
        return f"method=expression,expr=(log(1+x)-{_digits(mean)})/{_digits(spread)}", _digits(median)
    mean, spread = float(values.mean()), max(float(values.std()), 1e-6)
    return f"method=zscore,mean={_digits(mean)},standard_deviation={_digits(spread)}", _digits(median)


def _digits(number: float) -> str:
    if number == 0 or not math.isfinite(number):
        return "0"
    text = f"{number:.5g}"
    return f"{float(text):f}".rstrip("0").rstrip(".") if "e" in text else text


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return quote(value) if isinstance(value, str) else repr(value)


def quote(text: str) -> str:
    """Text in quotes, as text format has it."""
    return json.dumps(text, ensure_ascii=False).replace("\\u001d", "\\x1d").replace("\\u0003", "\\x03")


def _comment(choice: Choice) -> str:
    nulls = f", {choice.column.nulls:,} null" if choice.column.nulls else ""
    return "".join(c if c.isprintable() else "?" for c in f"{choice.reason}{nulls}")
