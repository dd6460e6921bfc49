from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_fake import GOLDEN, SCHEMA, FakeScorer, formula

from recgrad.serving.answers import RequestError, Scored
from recgrad.serving.joins import FeatureStore
from recgrad.serving.pieces import FEW_CANDIDATES
from recgrad.serving.requests import ScoreRequest
from recgrad.serving.scoring import Result, model_table, score_requests
from recgrad.serving.served import Served
from recgrad.serving.settings import StoreSettings
from recgrad.serving.warming import golden_rows

SERVED = Served(FakeScorer(), "v1")


def rows(*given: dict[str, Any], how: Any = "error") -> ScoreRequest:
    return ScoreRequest(list(given), None, None, how, len(given))


def items(user: dict[str, Any], *given: dict[str, Any], how: Any = "error") -> ScoreRequest:
    return ScoreRequest(list(given), None, user, how, len(given))


def table(*given: dict[str, Any], how: Any = "error") -> ScoreRequest:
    return ScoreRequest(None, pa.Table.from_pylist(list(given), SCHEMA), None, how, len(given))


def probs(result: Result) -> list[float]:
    assert isinstance(result, Scored), result
    return result.scores["probs"].tolist()


def close(result: Result, *wanted: dict[str, Any]) -> None:
    np.testing.assert_allclose(probs(result), [formula(row) for row in wanted], rtol=1e-6)


def test_requests_of_all_forms_are_scored_in_one_call() -> None:
    scorer = FakeScorer()
    other = {**GOLDEN, "price": 8}
    user = {"user_id": 5, "city": "Bergen"}
    item = {"item_id": 1, "price": 2.0, "tags": []}
    asked = [rows(GOLDEN), table(other, GOLDEN), items(user, item, item), rows(other, GOLDEN)]
    found = score_requests(Served(scorer, "v1"), asked)
    close(found[0], GOLDEN)
    close(found[1], other, GOLDEN)
    close(found[2], {**user, **item}, {**user, **item})
    close(found[3], other, GOLDEN)
    assert scorer.calls == [7]


def test_many_items_share_their_users_row() -> None:
    scorer = FakeScorer()
    user = {"user_id": 5, "city": "Bergen"}
    many = [{"item_id": at, "price": 2.0, "tags": ["x"]} for at in range(FEW_CANDIDATES + 5)]
    found = score_requests(Served(scorer, "v1"), [rows(GOLDEN), items(user, *many)])
    close(found[0], GOLDEN)
    close(found[1], *({**user, **item} for item in many))


def test_what_an_item_says_wins_over_its_user() -> None:
    user = {**GOLDEN, "price": 1.0}
    for count in (1, FEW_CANDIDATES + 1):
        found = score_requests(SERVED, [items(user, *[{"item_id": 9, "price": 4.0}] * count)])
        close(found[0], *[{**GOLDEN, "item_id": 9, "price": 4.0}] * count)


def test_items_that_do_not_say_a_thing_take_their_users() -> None:
    for count in (1, 40):
        given = [{"item_id": 9, "price": 4.0}, {"item_id": 9}, {"item_id": 9, "price": None}] * count
        found = score_requests(SERVED, [items({**GOLDEN, "price": 1.0}, *given)])
        close(found[0], *({**GOLDEN, "price": 1.0, **item} for item in given))


def test_items_without_columns_are_their_user() -> None:
    for count in (1, FEW_CANDIDATES + 1):
        close(score_requests(SERVED, [items(GOLDEN, *[{}] * count)])[0], *[GOLDEN] * count)


def test_one_bad_request_spoils_no_other() -> None:
    bad = {**GOLDEN, "price": -1}
    wrong = {**GOLDEN, "item_id": "x"}
    broken = {**GOLDEN, "price": 666}
    lacking = {"user_id": 1}
    asked = [rows(GOLDEN), rows(GOLDEN, bad), rows(wrong), rows(lacking), rows(GOLDEN), rows(broken)]
    found = score_requests(SERVED, asked)
    close(found[0], GOLDEN)
    close(found[4], GOLDEN)
    statuses = [result.status if isinstance(result, RequestError) else 200 for result in found]
    assert statuses == [200, 422, 422, 422, 200, 500]
    error = found[1]
    assert isinstance(error, RequestError)
    assert error.message == (
        "feature price: price -1.0 is negative (column 'price', row 1); send a price of at least 0"
    )
    row = error.rows[0]
    assert (row.row, row.feature, row.value, row.remedy) == (1, "price", -1.0, "send a price of at least 0")


def test_bad_rows_score_null_where_that_is_asked_for() -> None:
    bad = {**GOLDEN, "price": -1}
    wrong = {**GOLDEN, "city": 1.5}
    found = score_requests(SERVED, [rows(wrong, GOLDEN, bad, how="null"), rows(GOLDEN)])
    scored = found[0]
    assert isinstance(scored, Scored)
    assert np.isnan(scored.scores["probs"][[0, 2]]).all()
    assert scored.scores["probs"][1] == np.float32(formula(GOLDEN))
    assert sorted(row.row or 0 for row in scored.bad) == [0, 2]
    close(found[1], GOLDEN)


def test_a_bad_user_is_told_as_such() -> None:
    user = {"user_id": "x", "city": "a"}
    item = {"item_id": 1, "price": 2.0, "tags": []}
    for count in (1, FEW_CANDIDATES + 1):
        error = score_requests(SERVED, [items(user, *[item] * count)])[0]
        assert isinstance(error, RequestError)
        assert "(the user)" in error.message
        assert error.rows[0].row is None
        nulls = score_requests(SERVED, [items(user, *[item] * count, how="null")])[0]
        assert np.isnan(probs(nulls)).all()


def test_columns_that_the_model_does_not_read_are_named() -> None:
    found = score_requests(SERVED, [rows({**GOLDEN, "label": 1, "x": 2}), rows(GOLDEN)])
    assert [result.ignored for result in found if isinstance(result, Scored)] == [("label", "x"), ()]


def test_no_rows_have_no_scores() -> None:
    for request in (rows(), table(), items({"user_id": 1})):
        assert probs(score_requests(SERVED, [request])[0]) == []


NAMES = list(SCHEMA.names)
ROW = st.fixed_dictionaries(
    {
        "user_id": st.one_of(st.none(), st.integers(0, 99), st.just("x"), st.just(0.5)),
        "item_id": st.integers(0, 99),
        "price": st.one_of(st.none(), st.floats(-5, 50), st.just(666)),
        "city": st.one_of(st.none(), st.text(max_size=3), st.integers(0, 9)),
    },
    optional={"tags": st.lists(st.text(max_size=2), max_size=2), "label": st.integers(0, 1)},
)
HOW = st.sampled_from(["error", "null"])


@st.composite
def requests(draw: st.DrawFn) -> ScoreRequest:
    given = draw(st.lists(ROW, max_size=4))
    if draw(st.booleans()):
        user = {"user_id": draw(st.integers(0, 9)), "tags": ["u"]}
        return items(
            user, *({k: v for k, v in row.items() if k != "user_id"} for row in given), how=draw(HOW)
        )
    return rows(*given, how=draw(HOW))


@settings(deadline=None)
@given(st.lists(requests(), min_size=1, max_size=5))
@pytest.mark.filterwarnings("ignore")
def test_a_request_is_answered_alike_alone_and_among_others(asked: list[ScoreRequest]) -> None:
    together = score_requests(SERVED, asked)
    for request, found in zip(asked, together, strict=True):
        alone = score_requests(SERVED, [request])[0]
        if isinstance(alone, RequestError):
            assert isinstance(found, RequestError)
            assert (found.status, found.message, list(found.rows)) == (
                alone.status,
                alone.message,
                list(alone.rows),
            )
        else:
            assert isinstance(found, Scored)
            np.testing.assert_array_equal(found.scores["probs"], alone.scores["probs"])
            assert list(found.bad) == list(alone.bad)
            assert found.ignored == alone.ignored


@pytest.fixture
def joined(tmp_path: Path) -> Served:
    catalogue = pa.table({"sku": ["a", "b"], "item_id": [10, 20], "price": [1.5, 2.5], "tags": [["t"], []]})
    pyarrow.parquet.write_table(catalogue, tmp_path / "items.parquet")
    pyarrow.parquet.write_table(
        pa.table({"user_id": [1, 2], "city": ["x", "yy"]}), tmp_path / "users.parquet"
    )
    stores = (
        FeatureStore("user", StoreSettings(str(tmp_path / "users.parquet"), "user_id"), tmp_path),
        FeatureStore("item", StoreSettings(str(tmp_path / "items.parquet"), "sku"), tmp_path),
    )
    return Served(FakeScorer(), "v1", stores)


WHOLE = {"user_id": 2, "item_id": 20, "price": 2.5, "city": "yy", "tags": []}


def test_ids_alone_are_enough_where_features_are_stored(joined: Served) -> None:
    arrow = pa.table({"user_id": [2], "sku": ["b"]})
    asked = [
        rows({"user_id": 2, "sku": "b"}),
        items({"user_id": 2}, {"sku": "b"}),
        items({"user_id": 2}, *[{"sku": "b"}] * (FEW_CANDIDATES + 1)),
        ScoreRequest(None, arrow, None, "error", 1),
        rows({"user_id": 2, "sku": "b", "price": 7}),
    ]
    found = score_requests(joined, asked)
    close(found[0], WHOLE)
    close(found[1], WHOLE)
    close(found[2], *[WHOLE] * (FEW_CANDIDATES + 1))
    close(found[3], WHOLE)
    close(found[4], {**WHOLE, "price": 7})


def test_an_id_that_is_not_stored_is_a_bad_row(joined: Served) -> None:
    found = score_requests(
        joined,
        [
            rows({"user_id": 2, "sku": "b"}, {"user_id": 2, "sku": "c"}),
            rows({"user_id": 2, "sku": "b"}, {"user_id": 3, "sku": "a"}, how="null"),
            items({"user_id": 9}, {"sku": "b"}),
        ],
    )
    assert isinstance(found[0], RequestError)
    assert "'c' is no id of the stored item features (row 1)" in found[0].message
    assert np.isnan(probs(found[1])).tolist() == [False, True]
    assert isinstance(found[2], RequestError)
    assert found[2].rows[0].row is None


def test_a_column_that_nobody_has_is_told(joined: Served) -> None:
    error = score_requests(joined, [rows({"user_id": 1})])[0]
    assert isinstance(error, RequestError)
    assert "column 'item_id' is missing" in error.message


def test_the_table_of_a_request_has_every_column(joined: Served) -> None:
    many = FEW_CANDIDATES + 1
    found = model_table(joined, items({"user_id": 2}, *[{"sku": "b"}] * many))
    assert found.to_pylist() == [WHOLE] * many
    with pytest.raises(RequestError, match="is no id"):
        model_table(joined, rows({"user_id": 7, "sku": "a"}))
    with pytest.raises(RequestError, match="missing"):
        model_table(joined, rows({"user_id": 1}))


def test_golden_rows_show_32_bit_floats_in_few_digits() -> None:
    table = pa.table(
        {
            "x": pa.array([0.1, None, float("nan")], pa.float32()),
            "y": pa.array([[0.3], None, []], pa.list_(pa.float32())),
            "z": pa.array([0.1, 1e-9, 2.0]),
        }
    )
    rows = golden_rows(table)
    assert rows[0] == {"x": 0.1, "y": [0.3], "z": 0.1}
    assert np.float32(rows[0]["x"]) == table["x"][0].as_py()  # type: ignore[arg-type]
    assert rows[1]["z"] == 1e-9
