"""The compiled reader against msgspec: it reads the same, or leaves a body to it."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from recgrad.data.faults import Faults
from recgrad.serving.answers import RequestError
from recgrad.serving.columns import RowReader
from recgrad.serving.json_rows import BodyReader, Read, brackets
from recgrad.serving.requests import decode

SCHEMA = pa.schema(
    [
        ("n", pa.int64()),
        ("m", pa.int32()),
        ("x", pa.float64()),
        ("y", pa.float32()),
        ("t", pa.string()),
        ("u", pa.large_string()),
        ("b", pa.bool_()),
        ("l", pa.list_(pa.int64())),
        ("naïve", pa.int64()),
    ]
)
ROWS = RowReader(SCHEMA)
READER = BodyReader(ROWS.types)
ROW = {"n": 5, "x": 0.5, "t": "a b"}


def body(value: Any) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value, ensure_ascii=False).encode()


def read(*bodies: Any, max_rows: int = 100) -> tuple[list[Read], list[int]]:
    return READER.read([body(one) for one in bodies], max_rows)


def same(group: Read, *bodies: Any) -> None:
    """What was read is what the reader of Python objects reads."""
    rows = [
        row for one in bodies for row in (json.loads(body(one)).get("rows") or json.loads(body(one))["items"])
    ]
    faults = Faults()
    columns, unknown = ROWS.read_any(rows, faults)
    assert not faults
    assert not unknown
    found = pa.table(group.columns)
    found.validate(full=True)
    wanted = pa.table(columns)
    assert found.schema == wanted.schema
    assert found.equals(wanted), (found.to_pylist(), wanted.to_pylist())


def test_bodies_of_one_shape_are_read_together() -> None:
    one = {"rows": [ROW, {**ROW, "n": -7, "t": ""}]}
    other = {"rows": [{**ROW, "x": None}], "on_bad_row": "null"}
    (group,), others = read(one, other)
    assert others == []
    assert (group.bodies, group.counts, group.users, group.nulls) == (
        [0, 1],
        [2, 1],
        [None, None],
        [False, True],
    )
    same(group, one, other)


def test_bodies_of_other_shapes_are_read_apart() -> None:
    bodies = [{"rows": [ROW]}, {"rows": [{"n": 1}]}, {"rows": [ROW]}, {"rows": [{"n": 2}]}, {"rows": [{}]}]
    groups, others = read(*bodies)
    assert others == [4]
    assert [group.bodies for group in groups] == [[0, 2], [1, 3]]
    for group in groups:
        same(group, *(bodies[at] for at in group.bodies))


def test_a_user_is_read_beside_items() -> None:
    asked = {"user": {"l": [1, 2], "t": 'q"\\}{'}, "items": [{"n": 1}, {"n": 2}]}
    (group,), others = read(asked, {"items": [{"n": 3}], "user": {"z": None}})
    assert others == []
    assert group.users == [asked["user"], {"z": None}]
    assert group.columns["n"].to_pylist() == [1, 2, 3]


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"{",
        b"[]",
        b'{"rows": [{"n": 1}]',
        b'{"rows": [{"n": 1}]} x',
        b'{"rows": [{"n": 1},]}',
        b'{"rows": [{"n": 1,}]}',
        b'{"rows": [{"n": 1 "m": 2}]}',
        b'{"rows": [{"n": 1}, {"n": 1, "n": 2}]}',
        b'{"rows": [{"n": 1, "n": 2}]}',
        b'{"rows": [{"n" 1}]}',
        b'{"rows": [{"n": }]}',
        b'{"rows": [{n: 1}]}',
        b'{"rows": [{"n": 01}]}',
        b'{"rows": [{"n": -}]}',
        b'{"rows": [{"n": +1}]}',
        b'{"rows": [{"x": 1.}]}',
        b'{"rows": [{"x": .5}]}',
        b'{"rows": [{"x": 1e}]}',
        b'{"rows": [{"x": 1e+}]}',
        b'{"rows": [{"x": NaN}]}',
        b'{"rows": [{"x": Infinity}]}',
        b'{"rows": [{"n": nul}]}',
        b'{"rows": [{"n": nullx}]}',
        b'{"rows": [{"b": truely}]}',
        b'{"rows": [{"t": "a\nb"}]}',
        b'{"rows": [{"t": "a}]}',
        b'{"rows": [{"t": "\xff"}]}',
        b'{"rows": [{"t": "\xed\xa0\x80"}]}',
        b'{"rows": [{"n": 1}], "rows": [{"n": 1}]}',
        b'{"rows": [{"n": 1}], "items": [{"n": 1}]}',
        b'{"rows": [{"n": 1}], "user": {}}',
        b'{"items": [{"n": 1}]}',
        b'{"user": {"n": }, "items": [{"n": 1}]}',
        b'{"user": {"n": 1, "items": [{"n": 1}]}',
        b'{"user": 5, "items": [{"n": 1}]}',
        b'{"rows": [{"n": 1}], "other": 1}',
        b'{"rows": [{"n": 1}], "on_bad_row": "skip"}',
        b'{"rows": {"n": 1}}',
        b'{"rows": [1]}',
        b'{"rows": []}',
    ],
)
def test_what_is_no_json_or_no_request_is_left_to_the_other_reader(value: bytes) -> None:
    groups, others = read(value, {"rows": [ROW]})
    assert others == [0]
    (group,) = groups
    assert group.bodies == [1]
    same(group, {"rows": [ROW]})


@pytest.mark.parametrize(
    "row",
    [
        {"n": 1.0},
        {"n": "1"},
        {"n": True},
        {"n": 10**18},
        {"n": [1]},
        {"m": 2**31},
        {"x": "1"},
        {"x": False},
        {"x": 10**17},
        {"t": 1},
        {"t": 'a"b'},
        {"t": ["a"]},
        {"b": 1},
        {"b": "true"},
        {"l": [1]},
        {"z": 1},
        {"n": {}},
    ],
)
def test_values_that_need_a_word_or_a_closer_look_are_left_too(row: dict[str, Any]) -> None:
    assert read({"rows": [row]}) == ([], [0])


def test_rows_that_differ_in_their_keys_are_left() -> None:
    for other in ({"n": 1}, {"x": 1, "n": 1}, {"n": 1, "x": 1, "t": ""}, {"n": 1, "t": ""}):
        assert read({"rows": [{"n": 1, "x": 1}, other]}) == ([], [0])


def test_too_many_rows_are_left() -> None:
    assert read({"rows": [ROW] * 101}) == ([], [0])
    assert read({"rows": [ROW] * 100})[1] == []


def test_white_space_and_names_of_others_alphabets_are_read() -> None:
    spaced = ' \n{ "rows" :\t[ { "naïve" : 3 , "t" : "é💥" } ] , "on_bad_row" : "null" }\r\n'.encode()
    (group,), others = read(spaced)
    assert others == []
    assert group.columns["naïve"].to_pylist() == [3]
    assert group.columns["t"].to_pylist() == ["é💥"]
    assert group.nulls == [True]


NUMBER = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.floats(-1e6, 1e6).map(repr),
    st.integers(-(10**17), 10**17).map(str),
    st.integers(0, 10**25).map(lambda n: f"{str(n)[:-5] or 0}.{str(n)[-5:]}"),
    st.tuples(st.integers(0, 10**19), st.integers(-340, 320)).map(lambda p: f"{p[0]}e{p[1]}"),
    st.tuples(st.integers(0, 999), st.integers(0, 10**20), st.integers(-25, 25)).map(
        lambda p: f"{p[0]}.{p[1]:020d}E{p[2]:+d}"
    ),
)


@settings(max_examples=500)
@given(st.lists(NUMBER, min_size=1, max_size=8))
@example(["-0", "-0.0", "0e5", "1e308", "1.7976931348623157e308", "5e-324", "2.2250738585072014e-308"])
@example(["9007199254740993", "9007199254740993.0", "0.1", "123456789012345678", "1e22", "1e23"])
@example(["9007199254740993"])
@example(["0.021381940692663193", "4503599627370496.5", "4503599627370497.5", "9007199254740991.5"])
@example(["1.00000000000000011", "0.99999999999999995", "1.1102230246251565e-5", "0.000000000000000000001"])
def test_numbers_are_read_to_the_last_bit(texts: list[str]) -> None:
    data = b'{"rows": [' + b",".join(b'{"x": ' + text.encode() + b"}" for text in texts) + b"]}"
    groups, others = READER.read([data], 100)
    if others:  # integers that a float does not hold
        exact = [int(text) if text.lstrip("-").isdigit() else float(text) for text in texts]
        assert any(abs(value) > 2**53 for value in exact)
        return
    found = groups[0].columns["x"].to_numpy()
    for text, value in zip(texts, found.tolist(), strict=True):
        wanted = float(text) if any(mark in text for mark in ".eE") else float(int(text))
        assert (value, math.copysign(1, value)) == (wanted, math.copysign(1, wanted)), text


VALUES: dict[str, st.SearchStrategy[Any]] = {
    "n": st.integers(-(2**62), 2**62),
    "m": st.integers(-(2**32), 2**32),
    "x": st.floats(allow_nan=False, allow_infinity=False),
    "y": st.floats(-1e3, 1e3, width=32),
    "t": st.text(max_size=4),
    "u": st.text("ab\\é", max_size=4),
    "b": st.booleans(),
    "l": st.none(),
}


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    names = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=4, unique=True))
    row = st.fixed_dictionaries({name: st.none() | VALUES[name] for name in names})
    value: dict[str, Any] = {"rows": draw(st.lists(row, min_size=1, max_size=3))}
    if draw(st.booleans()):
        value = {"user": draw(row), "items": value["rows"]}
    return json.dumps(
        value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, 1]))
    ).encode()


@settings(max_examples=200, deadline=None)
@given(st.lists(bodies(), min_size=1, max_size=4), st.data())
def test_whatever_is_read_is_what_msgspec_reads(given_: list[bytes], data: st.DataObject) -> None:
    if data.draw(st.booleans()):  # damage one of them
        at = data.draw(st.integers(0, len(given_) - 1))
        damaged = bytearray(given_[at])
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        given_[at] = bytes(damaged)
    groups, others = READER.read(given_, 100)
    assert sorted([number for group in groups for number in group.bodies] + others) == list(
        range(len(given_))
    )
    for group in groups:
        first = 0
        for number, count, user, nulls in zip(
            group.bodies, group.counts, group.users, group.nulls, strict=True
        ):
            request = decode(given_[number], "application/json", max_rows=100)  # raises if it is no JSON
            assert request.user == user
            assert request.on_bad_row == ("null" if nulls else "error")
            assert request.rows is not None
            faults = Faults()
            columns, unknown = ROWS.read_any(request.rows, faults)
            assert not faults
            assert not unknown
            own = pa.table({name: column.slice(first, count) for name, column in group.columns.items()})
            assert own.select(sorted(columns)).equals(pa.table(columns).select(sorted(columns)))
            assert set(own.column_names) == set(columns)
            first += count


def test_odd_bodies_still_get_the_words_of_the_other_reader() -> None:
    with pytest.raises(RequestError, match="cannot be read"):
        decode(b'{"rows": [{"n": 01}]}', "", max_rows=10)
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(b'{"rows": [{"n": 01}]}')


@given(st.binary(max_size=50), st.integers(0, 200))
def test_brackets_are_counted_in_short_and_long_texts(piece: bytes, times: int) -> None:
    text = (piece + b"{") * times
    assert brackets(text) == text.count(b"{")
