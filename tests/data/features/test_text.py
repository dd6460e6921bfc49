"""Cutting, joining and reading of byte spans against Python's own string methods."""

import math
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recgrad.data.features.text import Text, cut, halve, join, parse_floats, parse_ints

texts = st.lists(st.text(st.sampled_from("ab|;、日\x1d é"), max_size=12), max_size=10)


def strings(text: Text) -> list[str]:
    return [text[i] for i in range(len(text))]


def text_of(values: list[str], form: int) -> Text:
    """The same texts as a whole array, a slice, and picked out of order."""
    if form == 0:
        return Text.of(pa.array(values, pa.string()))
    if form == 1:
        return Text.of(pa.array(["junk", *values, "|"], pa.large_string()).slice(1, len(values)))
    backwards = Text.of(pa.array(values[::-1], pa.string()))
    return backwards.take(np.arange(len(values))[::-1])


@settings(max_examples=60, deadline=None)
@given(values=texts, form=st.integers(0, 2), separator=st.sampled_from(["|", "\x1d", "||", "、", ";|", "日"]))
@example(values=["a|||b", "|||", "||"], form=0, separator="||")
def test_cut_is_split(values, form, separator) -> None:
    parts, offsets = cut(text_of(values, form), separator)
    starts = np.arange(len(values) + 1) if offsets is None else offsets
    got = [strings(parts)[a:b] for a, b in pairwise(starts)]
    assert got == [value.split(separator) for value in values]


@settings(max_examples=60, deadline=None)
@given(values=texts, form=st.integers(0, 2), separator=st.sampled_from(["|", "、", "||"]))
def test_halve_is_rpartition(values, form, separator) -> None:
    before, after, has = halve(text_of(values, form), separator)
    want = [value.rpartition(separator) if separator in value else (value, "", "") for value in values]
    assert strings(before) == [a for a, _, _ in want]
    assert strings(after) == [b for _, _, b in want]
    assert has.tolist() == [separator in value for value in values]


@settings(max_examples=40, deadline=None)
@given(
    rows=st.lists(st.tuples(*[st.text(max_size=5)] * 3), max_size=8),
    separator=st.sampled_from(["_", "", "、"]),
)
def test_join_is_join(rows, separator) -> None:
    parts = [text_of([row[i] for row in rows], i) for i in range(3)]
    joined = join(parts, separator)
    assert strings(joined) == [separator.join(row) for row in rows]
    assert joined.to_arrow().to_pylist() == strings(joined)


@settings(max_examples=60, deadline=None)
@given(values=texts, form=st.integers(0, 2), data=st.data())
def test_to_arrow_has_the_same_texts(values, form, data) -> None:
    text = text_of(values, form)
    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values))), np.bool_)
    for some in (text, text.take(kept), cut(text, "|")[0]):
        array = some.to_arrow()
        array.validate(full=True)
        assert array.to_pylist() == strings(some)


numbers = st.one_of(
    st.integers(-(2**64), 2**64).map(str),
    st.sampled_from(["", "-", "+", "+5", " 12 ", "1 2", "007", "-0", "1.0", "１", "9223372036854775807"]),
    st.text("0123456789-+ .", max_size=8),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(numbers, max_size=8))
@example(["9223372036854775807", "9223372036854775808", "-9223372036854775807", "00000000000000000001"])
def test_integers_are_ascii_decimals_of_at_most_19_digits(values) -> None:
    got, bad = parse_ints(text_of(values, 0))
    for value, number, wrong in zip(values, got.tolist(), bad.tolist(), strict=True):
        digits = value.strip(" ").lstrip("+-") if value.strip(" ")[:2] not in ("+-", "-+", "--", "++") else ""
        good = digits.isascii() and digits.isdigit() and len(digits) <= 19 and int(digits) < 2**63
        assert wrong == (not good), value
        assert wrong or number == int(value)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.floats(allow_nan=False).map(repr) | st.sampled_from(["x", "", "1e5", "1_0", "0x1", "+1", "--1"])
    )
)
def test_floats_are_read_exactly(values) -> None:
    got, bad = parse_floats(text_of(values, 0))
    for value, number, wrong in zip(values, got.tolist(), bad.tolist(), strict=True):
        assert wrong == (value in ("x", "", "1_0", "0x1", "--1")), value
        assert wrong or number == float(value)


def test_words_for_nan_and_infinity_are_read_as_such() -> None:
    got, bad = parse_floats(text_of(["nan", "inf", "-inf", "?"], 0))
    assert bad.tolist() == [False, False, False, True]
    assert math.isnan(got[0])
    assert got[1:3].tolist() == [math.inf, -math.inf]


@pytest.mark.parametrize("separator", ["||", "、"])
def test_features_take_separators_of_several_bytes(encode, bucket, separator) -> None:
    text = f"""id_feature {{
      feature_name: "f" expression: "user:c" embedding_dim: 4 hash_bucket_size: 99 separator: "{separator}"
    }}"""
    result = encode(text, {"c": [f"日{separator}a|b", "x", None]})
    assert result.ids() == [[bucket("日", 99), bucket("a|b", 99)], [bucket("x", 99)], []]


def test_bytes_that_are_no_text_are_no_numbers() -> None:
    values = pa.array([b"1.5", b"\xff\xfe", b" 2 ", b"3\xc3"], pa.binary())
    got, bad = parse_floats(Text.of(values))
    assert bad.tolist() == [False, True, False, True]
    assert got[[0, 2]].tolist() == [1.5, 2.0]
