from __future__ import annotations

import tracemalloc
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from recgrad.data.faults import Faults
from recgrad.errors import DataError
from recgrad.serving.columns import RowReader, cast_table, missing, to_array

SCHEMA = pa.schema(
    [
        ("n", pa.int32()),
        ("x", pa.float32()),
        ("t", pa.dictionary(pa.int32(), pa.string())),
        ("b", pa.bool_()),
        ("l", pa.list_(pa.int64())),
        ("m", pa.map_(pa.string(), pa.float64())),
        ("none", pa.null()),
    ]
)


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("n", 3, 3),
        ("n", 3.0, 3),
        ("n", "3", 3),
        ("n", "-3", -3),
        ("n", None, None),
        ("x", 1, 1.0),
        ("x", 0.5, 0.5),
        ("x", "0.5", 0.5),
        ("t", "a", "a"),
        ("t", 12, "12"),
        ("t", "", ""),
        ("b", True, True),
        ("b", 0, False),
        ("l", [1, None, 3], [1, None, 3]),
        ("l", [], []),
        ("l", ["1"], [1]),
        ("m", {"a": 1, "b": 0.5}, [("a", 1.0), ("b", 0.5)]),
        ("m", {}, []),
        ("none", None, None),
        ("none", "a", "a"),
        ("none", 5, "5"),
    ],
)
def test_values_become_the_types_of_training_without_loss(name: str, value: Any, wanted: Any) -> None:
    reader, faults = RowReader(SCHEMA), Faults()
    # The odd value sends the column through the slow way, where the other must not change.
    for rows in ([{name: value}], [{name: None}, {name: value}]):
        columns = reader.read(rows, reader.shape(rows[0]), faults)
        assert columns is not None
        assert not faults, faults.firsts()
        assert columns[name].to_pylist()[-1] == wanted


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("n", 3.5, "3.5 is not an integer of int32"),
        ("n", 2**31, "is not an integer of int32"),
        ("n", "x", "'x' is not an integer"),
        ("n", "٣" * 30, "is not an integer"),
        ("n", True, "True is not an integer"),
        ("n", [1], "[1] is not an integer"),
        ("n", 10**400, "is not an integer"),
        ("x", "abc", "'abc' is not a number"),
        ("x", "inf", "'inf' is not a number"),
        ("x", True, "True is not a number"),
        ("x", {"a": 1}, "is not a number"),
        ("t", 1.5, "1.5 is not a text"),
        ("t", ["a"], "['a'] is not a text"),
        ("t", False, "False is not a text"),
        ("b", 2, "2 is not true or false"),
        ("b", "true", "'true' is not true or false"),
        ("l", 5, "5 is not a list of which each item is an integer"),
        ("l", ["x"], "is not a list"),
        ("l", {"a": 1}, "is not a list"),
        ("m", [1], "is not an object of which each value is a number"),
        ("m", {"a": "x"}, "is not an object"),
    ],
)
def test_all_else_is_a_bad_row(name: str, value: Any, words: str) -> None:
    reader, faults = RowReader(SCHEMA), Faults()
    rows = [{name: None}, {name: value}, {name: None}]
    columns = reader.read(rows, reader.shape(rows[0]), faults)
    assert columns is not None
    assert list(faults.by_row()) == [1]
    fault = faults.by_row()[1]
    assert words in fault.problem
    assert fault.column == name
    assert "null" in fault.remedy
    assert columns[name].null_count == 3


VALUE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=5),
    st.lists(st.one_of(st.integers(-9, 9), st.text(max_size=2), st.none()), max_size=3),
    st.dictionaries(st.text(max_size=2), st.one_of(st.integers(-9, 9), st.none()), max_size=2),
)


@example([False, float("inf")], "x")
@given(st.lists(VALUE, min_size=1, max_size=6), st.sampled_from(SCHEMA.names))
def test_a_value_is_read_alike_alone_and_among_others(values: list[Any], name: str) -> None:
    """Requests are scored together, so a row may not depend on its neighbours."""
    kind = RowReader(SCHEMA).types[name]
    faults = Faults()
    together = to_array(values, name, kind, faults)
    bad = set(faults.by_row())
    for at, value in enumerate(values):
        alone_faults = Faults()
        alone = to_array([value], name, kind, alone_faults)
        assert bool(alone_faults) == (at in bad)
        assert alone.type == together.type == kind
        assert alone[0].equals(together[at])


def test_rows_of_one_shape_are_read_fast_and_others_too() -> None:
    reader, faults = RowReader(SCHEMA), Faults()
    rows = [{"x": 1, "n": 2, "extra": 0}, {"n": 3, "x": 4, "extra": 0}]
    shape = reader.shape(rows[0])
    assert (shape.known, shape.unknown) == (("n", "x"), ("extra",))
    columns = reader.read(rows, shape, faults)
    assert columns is not None
    assert {name: column.to_pylist() for name, column in columns.items()} == {"n": [2, 3], "x": [1, 4]}
    for other in ({"n": 3}, {"n": 3, "x": 4, "more": 1}, {"n": 1, "x": 1, "extra": 1, "t": "a"}):
        assert reader.read([rows[0], other], shape, faults) is None
        found, unknown = reader.read_any([rows[0], other], faults)
        assert found["n"].to_pylist() == [2, other["n"]]
        assert found["x"].to_pylist() == [1, other.get("x")]
        assert "extra" in unknown


def test_clients_cannot_fill_the_memory_with_shapes() -> None:
    reader = RowReader(SCHEMA)
    for at in range(2 * RowReader.MAX_SHAPES):
        reader.shape({f"key{at}": 1})
    assert len(reader._shapes) == RowReader.MAX_SHAPES


def test_arrow_columns_become_the_types_of_training_or_are_refused() -> None:
    types = RowReader(SCHEMA).types
    table = pa.table({"n": pa.array([1], pa.int64()), "t": pa.array(["a"]).dictionary_encode(), "z": [1]})
    columns, unknown = cast_table(table, types)
    assert unknown == ("z",)
    assert columns["n"].type == pa.int32()
    assert columns["t"].to_pylist() == ["a"]
    with pytest.raises(DataError, match="column 'n' is of type int64, and does not become int32"):
        cast_table(pa.table({"n": [2**40]}), types)
    with pytest.raises(DataError, match="column 'n' occurs 2 times"):
        cast_table(pa.Table.from_arrays([pa.array([1]), pa.array([1])], names=["n", "n"]), types)
    assert cast_table(pa.table({"n": pa.chunked_array([], pa.int64())}), types)[0]["n"].type == pa.int32()


def test_a_missing_column_is_told_with_what_may_be_meant() -> None:
    assert missing(["a"], ["a"], []) is None
    text = missing(["user_id", "b"], [], ["user_idd", "q"])
    assert text is not None
    assert text.startswith("data: column 'user_id' is missing (so is b); 'user_idd'")
    assert "send null" in text


def test_rows_of_many_unknown_keys_are_not_remembered() -> None:
    """Clients choose the keys: what is remembered of them must stay small."""
    reader = RowReader(pa.schema([("a", pa.int64())]))
    tracemalloc.start()
    try:
        for number in range(50):
            shape = reader.shape({"a": 1, **{f"k{number}_{i}": 0 for i in range(2000)}})
            assert len(shape.unknown) == 2000
        del shape
        assert tracemalloc.get_traced_memory()[0] < 1 << 20
    finally:
        tracemalloc.stop()
    assert reader.shape({"a": 1, "b": 2}) is reader.shape({"a": 3, "b": 4})
