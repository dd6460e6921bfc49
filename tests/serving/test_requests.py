from __future__ import annotations

import json
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recgrad.serving.answers import ARROW, RequestError
from recgrad.serving.requests import ScoreRequest, decode


def read(body: Any, kind: str = "application/json", **settings: Any) -> ScoreRequest:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return decode(data, kind, **{"max_rows": 100, **settings})


def refused(body: Any, kind: str = "application/json", **settings: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(body, kind, **settings)
    return caught.value


def stream(table: pa.Table, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_rows_and_users_with_items_are_read() -> None:
    rows = read({"rows": [{"a": 1}, {"a": None}], "on_bad_row": "null"})
    assert (rows.rows, rows.user, rows.on_bad_row, rows.size) == ([{"a": 1}, {"a": None}], None, "null", 2)
    items = read({"user": {"u": 1}, "items": [{"i": 2}]})
    assert (items.rows, items.user, items.on_bad_row, items.size) == ([{"i": 2}], {"u": 1}, "error", 1)


def test_ids_stand_for_stored_features_only_where_there_are_some() -> None:
    found = read({"user": "u1", "items": [1, {"i": 2}]}, keys={"user": "user_id", "item": "item_id"})
    assert found.user == {"user_id": "u1"}
    assert found.rows == [{"item_id": 1}, {"i": 2}]
    error = refused({"user": {}, "items": [1]})
    assert error.status == 400
    assert "--item_features" in error.message


@pytest.mark.parametrize("kind", ["", "application/json; charset=utf-8", "application/x-www-form-urlencoded"])
def test_what_curl_sends_is_read_as_json(kind: str) -> None:
    assert read({"rows": []}, kind).size == 0


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 400, "cannot be read"),
        (b"{", 400, "truncated"),
        (b"[]", 400, "Expected `object`"),
        ({"rows": 3}, 400, r"$.rows"),
        ({"rows": [3]}, 400, r"$.rows[0]"),
        ({"row": []}, 400, "unknown field `row`"),
        ({}, 400, "neither 'rows' nor 'items'"),
        ({"items": []}, 400, "no 'user'"),
        ({"rows": [], "user": {}}, 400, "keep one"),
        ({"rows": [], "on_bad_row": "skip"}, 400, "skip"),
        (b'{"rows": [{"a": NaN}]}', 400, "invalid character"),
        (b'{"rows": [{"a": ' + b"[" * 50_000 + b"]" * 50_000 + b"}]}", 400, "nested too deeply"),
        (b'{"rows": [{"a": "\xff"}]}', 400, "cannot be read"),
        ({"rows": [{}] * 101}, 413, "101 rows, more than --max_rows 100"),
    ],
)
def test_what_cannot_be_read_is_told(body: Any, status: int, words: str) -> None:
    error = refused(body)
    assert error.status == status
    assert words in error.message


def test_an_unknown_content_type_is_told() -> None:
    error = refused({"rows": []}, "text/html")
    assert error.status == 415
    assert ARROW in error.message


def test_arrow_streams_are_read() -> None:
    table = pa.table({"a": [1, 2], "b": pa.array(["x", None]).dictionary_encode()})
    found = read(stream(table), ARROW, on_bad_row="null")
    assert found.table is not None
    assert found.table.equals(table)
    assert (found.size, found.on_bad_row) == (2, "null")


def test_a_compressed_arrow_body_is_refused_before_it_asks_for_memory() -> None:
    numbers = pa.table({"a": np.zeros(1_000_000)})
    for codec in ("lz4", "zstd"):
        assert "compressed" in refused(stream(numbers, compression=codec), ARROW, max_rows=10**9).message
    words = pa.table({"a": pa.array(["x" * 1000]).dictionary_encode()})
    assert "compressed" in refused(stream(words, compression="zstd"), ARROW).message


def test_rows_without_columns_count_too() -> None:
    many = pa.Table.from_batches([pa.RecordBatch.from_arrays([pa.nulls(1000)], ["a"])])
    assert refused(stream(many), ARROW).status == 413


@given(st.data())
def test_damaged_arrow_bodies_are_refused_or_read_safely(data: st.DataObject) -> None:
    table = pa.table({"a": [1, 2, 3], "b": ["x", "yy", None], "c": [[1], [], [2, 3]]})
    whole = bytearray(stream(table))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(whole)))
    for body in (bytes(whole), bytes(whole[:cut])):
        try:
            found = read(body, ARROW)
        except RequestError:
            continue
        assert found.table is not None
        found.table.to_pylist()  # nothing in it points outside
