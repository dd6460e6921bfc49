"""Patterns of a config match whole names, in time that their text cannot make explode."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.config.patterns import Pattern, assign_by_pattern
from recgrad.errors import ConfigError

HARMFUL = [r"(a+)+b", r"(a|a)*b", r"(a*)*b", r"a*a*a*a*a*a*a*b", r"(?:a{1,30}){1,30}b", r"(\w+\s?)+!"]
HARMFUL += ["(a|a)" * 30 + "b", "a?" * 121 + "a" * 121]


def test_harmful_patterns_take_no_time() -> None:
    """In a process of its own, which a pattern that never ends would keep beyond any patience."""
    program = (
        "from recgrad.config.patterns import Pattern\n"
        f"for pattern in {HARMFUL!r}:\n"
        "    assert not Pattern(pattern).matches('a' * 120)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


SIMPLE = ["a", "b", ".", "[ab]", "(a|b)", "(ab)?", r"\.", "[^a]", r"\w"]
PARTS = st.sampled_from([*SIMPLE, "a*", "b+", "(ab)*", "(a|bc)+", "a{1,3}", "(?:b.)*", "a?"])


@settings(max_examples=300, deadline=None)
@given(st.lists(PARTS, min_size=1, max_size=6).map("".join), st.text("abc.", max_size=8))
def test_patterns_match_what_pythons_match(pattern: str, name: str) -> None:
    assert Pattern(pattern).matches(name) == (re.fullmatch(pattern, name) is not None)


@pytest.mark.parametrize("pattern", [r"(?!.*bias).*", r".*(?<!wide)_emb", r"[)*+{]+x", r"\(a\)*", r"\\1"])
def test_few_repeats_may_look_around(pattern: str) -> None:
    for name in ("mlp.bias", "mlp.weight", "a_emb", "wide_emb", ")+x", "(a))", "\\1"):
        assert Pattern(pattern).matches(name) == (re.fullmatch(pattern, name) is not None)


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (r"(a)\1", "back-references"),
        (r"(?P<x>a)(?P=x)", "back-references"),
        (r"(?!x)(a+)+b", "look-around"),
        (r"(?=a)a*b*c*d*", "look-around"),
        ("(", "unterminated"),
    ],
)
def test_what_has_no_bound_is_refused_with_a_remedy(pattern: str, said: str) -> None:
    with pytest.raises(ConfigError, match=rf"parts\[0\].regex_pattern: .*{said}"):
        assign_by_pattern(["a"], [pattern], "parts", "table")


def test_the_first_that_matches_takes_a_name() -> None:
    assert assign_by_pattern(["a_emb", "b_emb", "c"], ["(a|x)+_emb", ".*_emb"], "parts", "table") == [
        0,
        1,
        -1,
    ]
