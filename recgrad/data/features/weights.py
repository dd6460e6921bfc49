"""Weighted ids: `id:weight` items and maps from id to weight."""

from __future__ import annotations

from typing import Any

import numpy as np

from recgrad.data.features.columns import Bags, TypeFault, take_values
from recgrad.data.features.frame import Pairs, Scope
from recgrad.data.features.outputs import numbers_of
from recgrad.data.features.text import Text, halve


def weighed(read: Any, scope: Scope, column: str) -> Bags:
    """Ids with weights; an id without a weight, or with one that is not finite, is a fault.

    Args:
        read: pairs, or bags of `id:weight` texts (positions of a sequence).
        scope: takes the faults.
        column: the input column.
    """
    if isinstance(read, Bags):
        if not isinstance(read.values, Text):
            if len(read.values):
                raise TypeFault("weighted ids must be 'id:weight' texts or a map")
            return Bags(read.values, read.offsets, np.empty(0, np.float32))
        keys, values, has = halve(read.values, ":")
        read = Pairs(Bags(keys, read.offsets), values, has)
    keys_bags = read.keys
    report = scope.report(keys_bags, column)
    if not read.has.all():
        missing = ~read.has
        keys_of = take_values(keys_bags.values, missing)
        report(missing, "id {value} has no weight", keys_of, "write id:weight, or set weighted to false")
    if len(read.has) and read.has.all():
        weights = numbers_of(read.values, report).astype(np.float32)
        bad = ~np.isfinite(weights)
        if bad.any():
            report(bad, "weight {value} is not a finite number", weights[bad], "mend the column")
    else:
        weights = np.ones(len(read.has), np.float32)
    return Bags(keys_bags.values, keys_bags.offsets, weights)
