"""The name that an error suggests for an unknown one."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recgrad.errors import _distance, nearest

WORDS = st.text("abc", max_size=6)


@cache
def distance(a: str, b: str) -> int:
    """By the definition: the cheapest way to make the last letters equal."""
    if not a or not b:
        return len(a) + len(b)
    ways = [distance(a[:-1], b) + 1, distance(a, b[:-1]) + 1, distance(a[:-1], b[:-1]) + (a[-1] != b[-1])]
    if len(a) > 1 and len(b) > 1 and a[-2:] == b[-1] + b[-2]:
        ways.append(distance(a[:-2], b[:-2]) + 1)
    return min(ways)


@given(WORDS, WORDS)
def test_distances_are_those_of_the_definition(a: str, b: str) -> None:
    assert _distance(a, b) == distance(a, b)


@pytest.mark.parametrize(
    ("name", "known", "found"),
    [
        ("INT46", ["INT32", "INT64"], "INT64"),  # two letters swapped are one slip
        ("ADAM", ["adagrad", "adam"], "adam"),
        ("adamv_optimizer", ["adam_optimizer", "adamw_optimizer"], "adamw_optimizer"),  # of the same length
        ("auk", ["auc", "xauc"], "auc"),
    ],
)
def test_the_nearest_name_is_suggested(name: str, known: list[str], found: str) -> None:
    assert nearest(name, known) == f"; did you mean '{found}'?"


def test_names_among_very_many_are_not_compared() -> None:
    assert nearest("item_7b", [f"item_{i}" for i in range(2_001)]) == ""
