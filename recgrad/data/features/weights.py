"""Weighted ids: `id:weight` items and maps from id to weight."""

from __future__ import annotations

import numpy as np

from recgrad.data.features.columns import Bags, take_values
from recgrad.data.features.frame import Pairs, Scope
from recgrad.data.features.outputs import numbers_of


def weighed(read: Pairs, scope: Scope, column: str) -> Bags:
    """Ids with weights; an id without a weight, or with one that is not finite, is a fault.

    Args:
        read: ids and weights.
        scope: takes the faults.
        column: the input column.
    """
    keys_bags = read.keys
    report = scope.report(keys_bags, column)
    if not read.has.all():
        missing = ~read.has
        keys_of = take_values(keys_bags.values, missing)
        report(missing, "id {value} has no weight", keys_of, "write id:weight, or set weighted to false")
    weights = np.ones(len(read.has))
    index = np.flatnonzero(read.has)
    weights[index] = numbers_of(
        take_values(read.values, index), lambda where, *rest: report(index[where], *rest)
    )
    single = weights.astype(np.float32)
    bad = ~np.isfinite(single)
    if bad.any():
        report(bad, "weight {value} is not a finite 32-bit float", weights[bad], "mend the column")
    return Bags(keys_bags.values, keys_bags.offsets, single)
