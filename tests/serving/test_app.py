"""The server over real connections, with the model that is a formula."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from serving_fake import GOLDEN, SCHEMA, FakeScorer, Running, fake_holder, formula, running

from recgrad.serving.answers import ARROW


def test_rows_are_scored(server: Running) -> None:
    rows = [{**GOLDEN, "price": price} for price in range(5)]
    status, answer = server.client().score({"rows": rows})
    assert status == 200
    np.testing.assert_allclose(answer["scores"]["probs"], [formula(row) for row in rows], rtol=1e-6)
    assert answer["model"] == server.service.holder.current.version


def test_a_user_with_items_is_scored(server: Running) -> None:
    user = {"user_id": 3, "city": "Oslo"}
    items = [{"item_id": at, "price": 1.0, "tags": None} for at in range(40)]
    status, answer = server.client().score({"user": user, "items": items})
    assert status == 200
    wanted = [formula({**user, **item}) for item in items]
    np.testing.assert_allclose(answer["scores"]["probs"], wanted, rtol=1e-6)


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def test_arrow_is_answered_with_arrow_unless_json_is_asked_for(server: Running) -> None:
    rows = [{**GOLDEN, "price": price} for price in (1.0, -1.0, 3.0)]
    body = stream(pa.Table.from_pylist(rows, SCHEMA))
    headers = {"Content-Type": ARROW}
    client = server.client()
    status, content = client.ask("POST", "/v1/score?on_bad_row=null", body, headers)
    assert status == 200
    table = pa.ipc.open_stream(content).read_all()
    assert table.column("probs").to_pylist() == [
        np.float32(formula(rows[0])),
        None,
        np.float32(formula(rows[2])),
    ]
    facts = table.schema.metadata
    assert facts[b"model"].decode() == server.service.holder.current.version
    assert json.loads(facts[b"bad_rows"])[0]["row"] == 1
    status, answer = client.ask("POST", "/v1/score", body, {**headers, "Accept": "application/json"})
    assert status == 422
    assert answer["error"]["rows"][0]["feature"] == "price"
    status, content = client.ask("POST", "/v1/score", {"rows": rows[:1]}, {"Accept": ARROW})
    assert pa.ipc.open_stream(content).read_all().num_rows == 1


def test_other_paths_methods_and_queries_are_told(server: Running) -> None:
    client = server.client()
    status, answer = client.ask("GET", "/nothing")
    assert status == 404
    assert "POST /v1/score" in answer["error"]["message"]
    assert client.ask("GET", "/v1/score")[0] == 405
    assert client.ask("POST", "/metrics", b"x" * 1000)[0] == 405
    assert client.ask("HEAD", "/healthz")[0] == 200
    status, answer = client.ask("POST", "/v1/score?bad=1", {"rows": []})
    assert status == 400
    assert "only on_bad_row" in answer["error"]["message"]


def test_the_model_tells_about_itself(server: Running) -> None:
    client = server.client()
    assert client.ask("GET", "/healthz") == (200, {"status": "alive"})
    status, ready = client.ask("GET", "/readyz")
    assert (status, ready["status"]) == (200, "ready")
    status, card = client.ask("GET", "/v1/model")
    assert status == 200
    assert card["model"] == ready["model"]
    assert card["golden_row"] == GOLDEN
    assert [column["name"] for column in card["columns"]] == SCHEMA.names
    assert card["manifest"]["metrics"] == {"auc": 0.75}
    assert client.score({"rows": [card["golden_row"]]})[0] == 200


def test_what_moves_a_score_is_told(server: Running) -> None:
    client = server.client()
    status, answer = client.ask("POST", "/v1/explain", {"rows": [GOLDEN]})
    assert status == 200
    change = formula(GOLDEN) - formula({**GOLDEN, "price": None})
    assert answer["moved"]["probs"]["price"] == pytest.approx([change], abs=1e-6)
    assert client.ask("POST", "/v1/explain", {"rows": [GOLDEN] * 17})[0] == 413
    assert client.ask("POST", "/v1/explain", {"rows": [{**GOLDEN, "price": -1}]})[0] == 422
    assert client.ask("POST", "/v1/explain", {"rows": [{}]})[0] == 422


def test_requests_are_counted() -> None:
    with running(fake_holder()) as server:
        client = server.client()
        client.score({"rows": [GOLDEN] * 3})
        client.score({"rows": [{**GOLDEN, "price": -1}]})
        client.ask("GET", "/nothing")
        status, text = client.ask("GET", "/metrics")
    assert status == 200
    assert 'recgrad_requests_total{route="/v1/score",status="200"} 1\n' in text
    assert 'recgrad_requests_total{route="/v1/score",status="422"} 1\n' in text
    assert 'recgrad_requests_total{route="other",status="404"} 1\n' in text
    assert "recgrad_rows_total 4\n" in text
    assert "recgrad_bad_rows_total 1\n" in text


def all_at_once(server: Running, bodies: Sequence[Any]) -> list[tuple[int, Any]]:
    barrier = threading.Barrier(len(bodies))

    def ask(body: Any) -> tuple[int, Any]:
        client = server.client()
        client.connection.connect()
        barrier.wait(20)
        return client.score(body)

    with ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(ask, bodies))


def test_concurrent_requests_are_scored_together() -> None:
    scorer = FakeScorer(delay_s=0.2)
    with running(fake_holder(scorer)) as server:
        scorer.calls.clear()  # it was warmed up
        rows = [{**GOLDEN, "item_id": at} for at in range(12)]
        answers = all_at_once(server, [{"rows": [row]} for row in rows])
    assert [status for status, _ in answers] == [200] * 12
    found = [answer["scores"]["probs"][0] for _, answer in answers]
    np.testing.assert_allclose(found, [formula(row) for row in rows], rtol=1e-6)
    assert sum(scorer.calls) == 12
    assert len(scorer.calls) <= 6  # those that came while the first was scored were scored together


def test_a_full_queue_gives_429_and_answers_the_others() -> None:
    with running(fake_holder(FakeScorer(delay_s=0.4)), max_queue=2) as server:
        answers = all_at_once(server, [{"rows": [GOLDEN]}] * 10)
        statuses = sorted(status for status, _ in answers)
        assert set(statuses) == {200, 429}
        assert server.client().score({"rows": [GOLDEN]})[0] == 200
        text = next(answer for status, answer in answers if status == 429)["error"]["message"]
    assert "--max_queue" in text


def test_too_many_bytes_give_429() -> None:
    with running(fake_holder(FakeScorer(delay_s=0.4)), max_body_mb=0.01, max_queue_mb=0.01) as server:
        big = {"rows": [{**GOLDEN, "city": "x" * 6000}]}
        statuses = {status for status, _ in all_at_once(server, [big] * 4)}
        assert statuses == {200, 429}
        assert server.service.batcher.held_bytes == 0


def test_a_request_that_waits_too_long_gives_504() -> None:
    scorer = FakeScorer(delay_s=1.2)
    with running(fake_holder(scorer), timeout_s=0.4) as server:
        status, answer = server.client().score({"rows": [GOLDEN]})
        assert status == 504
        assert "--timeout_s" in answer["error"]["message"]
        scorer.delay_s = 0
        time.sleep(1.2)
        assert server.client().score({"rows": [GOLDEN]})[0] == 200


@pytest.fixture(scope="module")
def strict() -> Any:
    with running(fake_holder(), max_body_mb=0.1, max_rows=50, body_timeout_s=0.5) as server:
        yield server


def test_large_bodies_are_refused_with_an_answer(strict: Running) -> None:
    client = strict.client()
    for size in (200_000, 20_000_000):
        status, answer = client.score(b"x" * size)
        assert status == 413
        assert "--max_body_mb" in answer["error"]["message"]
    assert client.score({"rows": [GOLDEN] * 51})[0] == 413
    parts = (b"x" * 50_000 for _ in range(100))
    client.connection.request(
        "POST", "/v1/score", parts, {"Transfer-Encoding": "chunked"}, encode_chunked=True
    )
    answer = client.connection.getresponse()
    assert answer.status == 413
    answer.read()
    assert client.score({"rows": [GOLDEN]})[0] == 200
    assert strict.service.batcher.held_bytes == 0


def test_a_body_in_chunks_is_read(strict: Running) -> None:
    client = strict.client()
    body = json.dumps({"rows": [GOLDEN]}).encode()
    parts = (body[at : at + 10] for at in range(0, len(body), 10))
    client.connection.request(
        "POST", "/v1/score", parts, {"Transfer-Encoding": "chunked"}, encode_chunked=True
    )
    assert client.connection.getresponse().status == 200


def test_a_slow_body_gives_408_and_a_client_that_goes_away_leaves_nothing(strict: Running) -> None:
    head = b"POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nabc"
    with socket.create_connection(("127.0.0.1", strict.port), 10) as slow:
        slow.sendall(head)
        assert slow.recv(1000).startswith(b"HTTP/1.1 408")
    with socket.create_connection(("127.0.0.1", strict.port), 10) as gone:
        gone.sendall(head)
    with socket.create_connection(("127.0.0.1", strict.port), 10) as garbage:
        garbage.sendall(b"\x16\x03\x01 garbage\r\n\r\n")
        garbage.recv(1000)
    for _ in range(200):
        if not strict.app.active:
            break
        time.sleep(0.02)
    batcher = strict.service.batcher
    assert (strict.app.active, batcher.held_bytes, batcher.arriving, batcher.waiting) == (0, 0, 0, 0)
    assert strict.client().score({"rows": [GOLDEN]})[0] == 200


def test_a_model_that_breaks_gives_500_and_serves_on(server: Running) -> None:
    client = server.client()
    status, answer = client.score({"rows": [{**GOLDEN, "price": 666}]})
    assert status == 500
    assert "ZeroDivisionError" in answer["error"]["message"]
    assert client.score({"rows": [GOLDEN]})[0] == 200


def test_the_page_may_run_its_own_script_alone(server: Running) -> None:
    client = server.client()
    client.connection.request("GET", "/")
    answer = client.connection.getresponse()
    policy = answer.getheader("content-security-policy") or ""
    assert answer.status == 200
    assert "default-src 'none'" in policy
    assert "connect-src 'self'" in policy
    assert "http" not in policy


def test_a_worker_stays_awake_for_a_moment_after_an_answer_and_then_sleeps(server: Running) -> None:
    client = server.client()
    for _ in range(3):
        assert client.score({"rows": [GOLDEN]})[0] == 200
    for _ in range(200):
        if not server.app.awake:
            break
        time.sleep(0.01)
    assert not server.app.awake
