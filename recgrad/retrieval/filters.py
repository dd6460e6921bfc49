"""Filters of items by their columns: `price < 20 and category in ("a", "b") and not sold_out`.

The syntax is Python's: comparisons (also chained), `in` with a list of values or, the other way round,
a value `in` a column of lists, `is None`, `and`, `or`, `not`, brackets. A comparison with a missing value
is neither true nor false, as in SQL, and what is not true is left out. Nothing is called: only these
forms are read.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recgrad.errors import RecgradError, nearest
from recgrad.retrieval.lists import Bools

_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: pc.equal,
    ast.NotEq: pc.not_equal,
    ast.Lt: pc.less,
    ast.LtE: pc.less_equal,
    ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
}
_FORMS = (ast.Name, ast.Constant, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.List, ast.Tuple)


class Filter:
    """A condition on columns of items.

    Args:
        text: such as `price < 20 and category == "shoes"`.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        try:
            self.tree = ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise RecgradError(
                f"filter '{text}': cannot be read ({error}); write it like price < 20 and category == 'shoes'"
            ) from None

    def mask(self, table: pa.Table) -> Bools:
        """Which rows of a table it is true of."""
        try:
            found = self._value(self.tree, table)
            if not isinstance(found, (pa.Array, pa.ChunkedArray)) or not pa.types.is_boolean(found.type):
                raise self._error("is not a condition")
            mask: Bools = np.asarray(pc.fill_null(found, False), bool)
        except (pa.ArrowException, TypeError) as error:
            raise self._error(f"does not fit the columns ({error})") from error
        return mask

    def check_form(self) -> None:
        """Raise unless it has the forms that are read, for translating it into another language."""
        for node in ast.walk(self.tree):
            if isinstance(node, ast.expr) and not isinstance(node, _FORMS):
                raise self._error(f"'{ast.unparse(node)}' is not a column, a value or a comparison")
        if isinstance(self.tree, ast.Constant):
            raise self._error("is not a condition")

    def check_column(self, name: str, columns: Sequence[str]) -> None:
        """Raise unless items have a column."""
        if name not in columns:
            known = ", ".join(columns)
            raise self._error(f"no column '{name}'{nearest(name, columns)} (items have: {known})")

    def _error(self, what: str) -> RecgradError:
        return RecgradError(f"filter '{self.text}': {what}")

    def _value(self, node: ast.expr, table: pa.Table) -> Any:
        if isinstance(node, ast.Name):
            return self._column(node.id, table)
        if isinstance(node, ast.Constant):
            return pa.scalar(node.value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return pc.negate(self._value(node.operand, table))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return pc.invert(self._value(node.operand, table))
        if isinstance(node, ast.BoolOp):
            join = pc.and_kleene if isinstance(node.op, ast.And) else pc.or_kleene
            first, *others = (self._value(part, table) for part in node.values)
            for other in others:
                first = join(first, other)
            return first
        if isinstance(node, ast.Compare):
            return self._compared(node, table)
        raise self._error(f"'{ast.unparse(node)}' is not a column, a value or a comparison")

    def _compared(self, node: ast.Compare, table: pa.Table) -> Any:
        found = None
        sides = [node.left, *node.comparators]
        for left, op, right in zip(sides, node.ops, node.comparators):
            one = self._comparison(left, op, right, table)
            found = one if found is None else pc.and_kleene(found, one)
        return found

    def _comparison(self, left: ast.expr, op: ast.cmpop, right: ast.expr, table: pa.Table) -> Any:
        if isinstance(op, (ast.In, ast.NotIn)):
            found = self._contained(left, right, table)
            return pc.invert(found) if isinstance(op, ast.NotIn) else found
        if isinstance(op, (ast.Is, ast.IsNot)):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise self._error("'is' goes with None alone; use ==")
            found = pc.is_null(self._value(left, table))
            return pc.invert(found) if isinstance(op, ast.IsNot) else found
        return _COMPARISONS[type(op)](self._value(left, table), self._value(right, table))

    def _contained(self, left: ast.expr, right: ast.expr, table: pa.Table) -> Any:
        if isinstance(right, (ast.List, ast.Tuple)):
            values = [self._value(item, table) for item in right.elts]
            if not all(isinstance(value, pa.Scalar) for value in values):
                raise self._error("the list after 'in' must hold values")
            column = self._value(left, table)
            return pc.is_in(column, value_set=pa.array([v.as_py() for v in values]).cast(column.type))
        lists, value = self._value(right, table), self._value(left, table)
        if not isinstance(value, pa.Scalar) or not _is_list(lists.type):
            raise self._error("'in' goes with a list of values, or a value with a column of lists")
        array = lists.combine_chunks() if isinstance(lists, pa.ChunkedArray) else lists
        rows = np.asarray(pc.list_parent_indices(array))
        equal = np.asarray(pc.fill_null(pc.equal(array.flatten(), value), False), bool)
        there = np.zeros(len(array), bool)
        there[rows[equal]] = True
        return pa.array(there)

    def _column(self, name: str, table: pa.Table) -> Any:
        self.check_column(name, table.column_names)
        return table.column(name)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))
