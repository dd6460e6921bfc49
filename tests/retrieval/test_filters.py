"""Filters of items against Python's own evaluation of them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from recgrad.errors import RecgradError
from recgrad.retrieval.filters import Filter

ROWS = [
    {"price": 5.0, "stock": 3, "name": "a", "tags": ["x", "y"], "sold": False},
    {"price": 20.0, "stock": 0, "name": "b", "tags": [], "sold": True},
    {"price": 12.5, "stock": 7, "name": "c", "tags": ["y"], "sold": False},
    {"price": -1.0, "stock": 9, "name": "a", "tags": ["x"], "sold": True},
]
TABLE = pa.Table.from_pylist(ROWS)


@pytest.mark.parametrize(
    "text",
    [
        "price < 20",
        "price <= 12.5 and stock != 3",
        "name == 'a' or stock > 6",
        "not sold",
        "0 < price < 15",
        "name in ('a', 'c') and not (price > 10)",
        "name not in ['b']",
        "'x' in tags",
        "'x' not in tags",
        "price > -1",
        "sold == True",
    ],
)
def test_a_filter_means_what_python_means(text: str) -> None:
    expected = [bool(eval(text, {}, row)) for row in ROWS]
    assert Filter(text).mask(TABLE).tolist() == expected


def test_missing_values_are_neither_true_nor_false() -> None:
    table = pa.table({"price": [1.0, None, 3.0]})
    assert Filter("price < 2").mask(table).tolist() == [True, False, False]
    assert Filter("not price < 2").mask(table).tolist() == [False, False, True]
    assert Filter("price is None").mask(table).tolist() == [False, True, False]
    assert Filter("price is not None").mask(table).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("price <", "cannot be read"),
        ("prise < 2", "no column 'prise'; did you mean 'price'?"),
        ("price", "is not a condition"),
        ("__import__('os').system('x')", "is not a column, a value or a comparison"),
        ("name < 2", "does not fit the columns"),
        ("name is 'a'", "'is' goes with None alone"),
        ("name in stock", "'in' goes with a list of values"),
        ("name in (price, 'a')", "must hold values"),
    ],
)
def test_other_texts_are_refused(text: str, problem: str) -> None:
    with pytest.raises(RecgradError) as error:
        Filter(text).mask(TABLE)
    assert problem in str(error.value)
