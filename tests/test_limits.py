"""Limits in signatures: one text for interval and words, kept by classes, functions and dataclasses alike."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recgrad.limits import Count, Range, Rate, Share, check_limits, keep_limits, limits_of
from recgrad.registry import Registry

if TYPE_CHECKING:
    from nowhere import Unknown


@keep_limits
class Own:
    def __init__(self, size: Count, *, share: Share = 0.5, rate: Rate | None = None) -> None:
        self.size = size


class Longer(Own):
    def __init__(self, *, shape: Literal["cos", "linear"] = "cos", **others: Any) -> None:
        super().__init__(**others)


class Narrow(Own):
    def __init__(self, *, other: Unknown, rates: Sequence[Rate] = ()) -> None:
        super().__init__(1)


@keep_limits
@dataclass(kw_only=True)
class Fields:
    size: Count
    part: Annotated[float, Range("(0, 1]")] = 1.0


@keep_limits
def function(*, size: Count = 1) -> int:
    return size


@pytest.mark.parametrize(
    ("interval", "value", "what"),
    [
        ("[0, 1)", 1, "must be in [0, 1), got 1"),
        ("(0, 1]", 0.0, "must be in (0, 1], got 0"),
        ("[1, ∞)", 0, "must be at least 1, got 0"),
        ("(0, ∞)", -2.5, "must be greater than 0, got -2.5"),
        ("(-∞, 0]", 3, "must be at most 0, got 3"),
        ("(-∞, 0)", 0, "must be less than 0, got 0"),
        ("(0, ∞)", math.nan, "must be greater than 0, got nan"),
        ("[1, ∞)", "many", "must be a number, got 'many'"),
    ],
)
def test_an_interval_says_what_is_wrong(interval, value, what):
    assert Range(interval).problem(value) == what


@given(st.floats(allow_nan=False), st.integers(-3, 3), st.integers(0, 4), st.booleans(), st.booleans())
def test_an_interval_holds_what_it_says(value, low, width, above, below):
    rule = Range(f"{'(' if above else '['}{low}, {low + width}{')' if below else ']'}")
    inside = (low < value or (value == low and not above)) and (
        value < low + width or (value == low + width and not below)
    )
    assert (rule.problem(value) is None) == inside


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Own(0), "size must be at least 1, got 0"),
        (lambda: Own(size=0), "size must be at least 1, got 0"),
        (lambda: Own(1, share=1.0), r"share must be in \[0, 1\), got 1"),
        (
            lambda: keep_limits(Longer)(size=1, shape="cosine"),
            "shape must be one of 'cos', 'linear', got 'cosine'",
        ),
        (lambda: keep_limits(Longer)(size=0), "size must be at least 1"),
        (lambda: keep_limits(Narrow)(other=1, rates=[1, -1]), r"rates\[1\] must be at least 0, got -1"),
        (lambda: Fields(size=0), "size must be at least 1"),
        (lambda: Fields(size=1, part=0), r"part must be in \(0, 1\], got 0"),
        (lambda: function(size=0), "size must be at least 1"),
    ],
)
def test_what_is_outside_is_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_what_is_inside_passes():
    assert Own(1, rate=None).size == 1
    assert keep_limits(Longer)(size=2).size == 2
    assert Fields(size=3).size == 3
    assert function(size=4) == 4


def test_a_constructor_without_further_keywords_has_its_own_limits_alone():
    assert set(limits_of(Longer)) == {"shape", "size", "share", "rate"}
    assert set(limits_of(Narrow)) == {"rates"}


def test_a_wrong_call_is_still_a_type_error():
    with pytest.raises(TypeError, match="unexpected keyword"):
        Own(1, sise=2)


def test_a_dict_of_settings_is_checked_the_same_way():
    check_limits(Own, {"size": 1, "unknown": -1})
    with pytest.raises(ValueError, match="size must be at least 1"):
        check_limits(Own, {"size": 0})


def test_a_registry_has_its_components_keep_their_limits():
    registry: Registry[Any] = Registry("thing", "tests_limits_nowhere")

    @registry.register("thing")
    class Thing:
        def __init__(self, *, size: Count = 1) -> None: ...

    with pytest.raises(ValueError, match="size must be at least 1"):
        Thing(size=0)
