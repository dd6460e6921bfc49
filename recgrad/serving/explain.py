"""What each feature adds to a score: the score less what it is when the feature is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from recgrad.data.features.base import Feature
from recgrad.data.list_column import Column, ListColumn, values_of, with_values
from recgrad.errors import DataError

Changes = dict[str, dict[str, Column]]


class Scoring(Protocol):
    """Anything that scores a table."""

    def score(self, rows: Any) -> dict[str, Column]:
        """The predictions of rows."""


def explain(scorer: Scoring, rows: Any, features: Sequence[Feature]) -> Changes:
    """{output: {feature: score − score without the feature, [rows]}}; NaN where it cannot be left out."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_batches([rows])
    whole = scorer.score(table)
    changes: Changes = {output: {} for output in whole}
    without: dict[tuple[str, ...], dict[str, Column]] = {}
    for feature in features:
        columns = _columns(feature, features)
        if columns not in without:
            without[columns] = _score_without(scorer, table, columns)
        for output, scores in whole.items():
            changes[output][feature.name] = _difference(scores, without[columns].get(output))
    return changes


def _difference(whole: Column, without: Column | None) -> Column:
    """NaN where a feature cannot be left out, also because it says how long lists are."""
    values = values_of(whole)
    there = without is not None and len(values_of(without)) == len(values)
    if there and isinstance(whole, ListColumn) and isinstance(without, ListColumn):
        there = np.array_equal(whole.lengths, without.lengths)
    if without is None or not there:
        return with_values(whole, np.full_like(values, np.nan))
    return with_values(whole, values - values_of(without))


def _columns(feature: Feature, features: Sequence[Feature]) -> tuple[str, ...]:
    """The columns that a feature reads; those of a whole sequence, whose members must be equally long."""
    name = feature.spec.sequence_name
    members = [feature] if name is None else [f for f in features if f.spec.sequence_name == name]
    found: dict[str, None] = {}
    for member in members:
        found.update(dict.fromkeys(_all_columns(member)))
    return tuple(found)


def _all_columns(feature: Feature) -> list[str]:
    """Its own, and those of features that it reads."""
    return [*feature.columns, *(column for needed in feature.needs for column in _all_columns(needed))]


def _score_without(scorer: Scoring, table: pa.Table, columns: tuple[str, ...]) -> dict[str, Column]:
    for column in columns:
        at = table.schema.get_field_index(column)
        if at >= 0:
            kind = table.schema.field(at).type
            table = table.set_column(at, pa.field(column, kind), pa.nulls(table.num_rows, kind))
    try:
        return scorer.score(table)
    except DataError:
        return {}
