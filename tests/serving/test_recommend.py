"""`POST /v1/recommend` of a model whose towers are formulas, against a sort."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from serving_fake import SCHEMA, FakeScorer, Running, running

from recgrad.errors import RecgradError
from recgrad.serving.holder import ModelHolder
from recgrad.serving.index import Index, build_index
from recgrad.serving.postgres import write_postgres
from recgrad.serving.recommending import IndexHolder

DIM, ITEMS = 4, 50
VECTORS = np.random.default_rng(0).standard_normal((ITEMS, DIM)).astype(np.float32)


class Towers(FakeScorer):
    """User u asks for the vector of item u."""

    def tower_schema(self, tower: str) -> pa.Schema:
        return pa.schema([SCHEMA.field(f"{tower}_id")])

    def embed(self, rows: Any, tower: str) -> Any:
        numbers = rows.column(f"{tower}_id").to_numpy(zero_copy_only=False)
        return VECTORS[numbers] + np.float32(self.shift)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    items = pa.table({"item_id": np.arange(ITEMS), "price": np.arange(ITEMS) % 10})
    golden = pa.table({"item_id": np.arange(3), "__vector__": VECTORS[:3].tolist()})
    build_index(tmp_path / "index", items, VECTORS, id_field="item_id", golden=golden)
    return tmp_path / "index"


@pytest.fixture
def served(path: Path) -> Iterator[Running]:
    with running(ModelHolder("fake", load=lambda _: Towers()), index=str(path), poll_s=0.01) as found:
        yield found


def best(user: int, k: int, allowed: np.ndarray) -> list[int]:
    order = np.argsort(-(VECTORS @ VECTORS[user]), kind="stable")
    return [int(i) for i in order if allowed[i]][:k]


def test_the_items_of_a_column_of_the_user_are_left_out(served: Running) -> None:
    client = served.client()
    body = {"users": [{"user_id": 7}, {"user_id": 8}], "k": 5, "seen": "user_id", "exclude": [3]}
    status, answer = client.ask("POST", "/v1/recommend", body)
    assert status == 200
    for user, row in zip((7, 8), answer["users"], strict=True):
        allowed = np.ones(ITEMS, bool)
        allowed[[user, 3]] = False
        assert row["items"] == best(user, 5, allowed)
    status, answer = client.ask("POST", "/v1/recommend", {"user": {"user_id": 7}, "seen": "history"})
    assert status == 422
    assert "the user tower has no column 'history' (has: user_id)" in str(answer)


def test_a_user_gets_the_best_items_that_pass(served: Running) -> None:
    client = served.client()
    status, answer = client.ask("POST", "/v1/recommend", {"user": {"user_id": 7}, "k": 5})
    assert status == 200
    assert answer["items"] == best(7, 5, np.ones(ITEMS, bool))
    assert answer["similarity"] == "INNER_PRODUCT"
    np.testing.assert_allclose(answer["scores"], (VECTORS @ VECTORS[7])[answer["items"]], rtol=1e-5)
    body = {
        "users": [{"user_id": 7}, {"user_id": 8}],
        "k": 4,
        "filter": "price >= 5",
        "exclude": [7, "8", 999],
    }
    status, answer = client.ask("POST", "/v1/recommend", body)
    allowed = np.arange(ITEMS) % 10 >= 5
    allowed[[7, 8]] = False
    assert [row["items"] for row in answer["users"]] == [best(7, 4, allowed), best(8, 4, allowed)]
    status, answer = client.ask("POST", "/v1/recommend", {"user": {"user_id": 7}, "k": 500})
    assert len(answer["items"]) == ITEMS
    client.close()


def test_a_changed_index_is_taken_up(served: Running, path: Path) -> None:
    client = served.client()
    first = client.ask("POST", "/v1/recommend", {"user": {"user_id": 7}, "k": 3})[1]["items"]
    Index(path).remove(pa.array(first[:1]))
    for _ in range(200):
        found = client.ask("POST", "/v1/recommend", {"user": {"user_id": 7}, "k": 2})[1]["items"]
        if found == first[1:]:
            break
    assert found == first[1:]
    client.close()


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        ({"user": {"user_id": 1}, "k": 0}, 400, "k must be from 1 to"),
        ({"k": 3}, 400, "'user' or 'users'"),
        ({"user": 3}, 400, "is an id"),
        ({"user": {"city": "Oslo"}}, 422, "column 'user_id' is missing"),
        ({"user": {"user_id": "x"}}, 422, "is not"),
        ({"user": {"user_id": 1}, "filter": "prize < 1"}, 422, "did you mean 'price'?"),
        ({"user": {"user_id": 1}, "kk": 1}, 400, "cannot be read"),
    ],
)
def test_bad_requests(served: Running, body: Any, status: int, problem: str) -> None:
    client = served.client()
    found, answer = client.ask("POST", "/v1/recommend", body)
    assert (found, problem in answer["error"]["message"]) == (status, True), answer
    client.close()


def test_an_index_of_another_model_and_no_index(path: Path) -> None:
    with running(ModelHolder("fake", load=lambda _: Towers(shift=3.0)), index=str(path)) as found:
        status, answer = found.client().ask("POST", "/v1/recommend", {"user": {"user_id": 1}})
        assert status == 422
        assert "was made by another model" in answer["error"]["message"]
    with running(ModelHolder("fake", load=lambda _: Towers())) as found:
        status, answer = found.client().ask("POST", "/v1/recommend", {"user": {"user_id": 1}})
        assert (status, answer["error"]["message"]) == (
            404,
            "this server has no index; start it with --index",
        )


@pytest.mark.slow
def test_an_index_in_postgresql_is_served_and_followed(tmp_path: Path) -> None:
    pgserver = pytest.importorskip("pgserver")
    pytest.importorskip("psycopg")
    server = pgserver.get_server(tmp_path / "postgres", cleanup_mode="stop")
    try:
        uri = server.get_uri()
        items = pa.table({"item_id": np.arange(ITEMS), "price": np.arange(ITEMS) % 10})
        golden = pa.table({"item_id": np.arange(3), "__vector__": VECTORS[:3].tolist()})
        options = {"id_field": "item_id", "similarity": "INNER_PRODUCT", "golden": golden, "name": "shop"}
        index = write_postgres(uri, items, VECTORS, **options)
        holder = ModelHolder("fake", load=lambda _: Towers())
        with running(holder, index=uri, index_table="shop", poll_s=0.01) as served:
            client = served.client()
            body = {
                "users": [{"user_id": 7}, {"user_id": 8}],
                "k": 4,
                "filter": "price >= 5",
                "exclude": [7, 8],
            }
            status, answer = client.ask("POST", "/v1/recommend", body)
            allowed = np.arange(ITEMS) % 10 >= 5
            allowed[[7, 8]] = False
            assert status == 200
            assert answer["index"] == 1
            assert [row["items"] for row in answer["users"]] == [best(7, 4, allowed), best(8, 4, allowed)]
            gone = answer["users"][0]["items"][0]
            index.remove(pa.array([gone]))
            allowed[gone] = False
            time.sleep(0.1)
            status, answer = client.ask("POST", "/v1/recommend", body)
            assert answer["index"] == 2
            assert answer["users"][0]["items"] == best(7, 4, allowed)
            client.close()
    finally:
        server.cleanup()


def test_a_table_goes_with_a_database(path: Path) -> None:
    with pytest.raises(RecgradError, match="goes with an index in PostgreSQL"):
        IndexHolder(path, table="shop")
