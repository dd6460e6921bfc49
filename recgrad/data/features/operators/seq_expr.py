"""An expression over the positions of sequences and over rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from recgrad.data.features.columns import read_bags
from recgrad.data.features.expressions import compile_expression
from recgrad.data.features.operators import OPERATORS, Operator
from recgrad.data.features.outputs import numbers_of

SPHERICAL = "spherical_distance"


@OPERATORS.register("SeqExpr")
class SeqExpr(Operator):
    """A formula over the inputs by their names, position by position, as in expr_feature.

    `spherical_distance` alone is the distance in kilometres of (longitude, latitude) and another such point,
    in the order of the inputs.

    Args:
        formula: such as `cur_time - clk_time_seq`.
    """

    def __init__(self, *, formula: str) -> None:
        self.spherical = formula.strip() == SPHERICAL
        self.expression = compile_expression("sphere_dist(a, b, c, d)" if self.spherical else formula)

    def compute(self, columns: Mapping[str, pa.Array]) -> Any:
        """The formula's value; null where an operand is missing."""
        names = list("abcd") if self.spherical else list(columns)
        if len(names) != len(columns):
            raise ValueError(f"expression must name four inputs for {SPHERICAL}, got {len(columns)}")
        if unknown := self.expression.variables - set(names):
            raise ValueError(f"formula names {', '.join(sorted(unknown))}, which is no input")
        read = [read_bags(array, None) for array in columns.values()]
        there = np.ones(len(read[0]), np.bool_)
        for bags in read:
            there &= bags.lengths == 1
        rows = np.flatnonzero(there)
        values = {
            name: numbers_of(bags.take(rows).values, _refuse).astype(np.float64)
            for name, bags in zip(names, read, strict=True)
        }
        found = np.zeros(len(there))
        if len(rows):
            with np.errstate(all="ignore"):
                computed: Any = self.expression.evaluate(values)
            found[rows] = computed
        return pa.array(found, mask=~there)


def _refuse(where: Any, reason: str, values: Any, remedy: str) -> None:
    if len(values):
        raise ValueError(f"{reason.replace('{value}', repr(values[0]))}; {remedy}")
