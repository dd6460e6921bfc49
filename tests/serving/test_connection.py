"""HTTP as clients of all kinds speak it, over real connections."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from serving_fake import GOLDEN, FakeScorer, Running, fake_holder, formula, running

from recgrad.serving.connection import MAX_AHEAD

HEALTH = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"


def score_request(*prices: float, head: bytes = b"") -> bytes:
    body = json.dumps({"rows": [{**GOLDEN, "price": price} for price in prices]}).encode()
    length = b"content-length: %d\r\n\r\n" % len(body)
    return b"POST /v1/score HTTP/1.1\r\nhost: x\r\n" + head + length + body


class Raw:
    """A connection whose answers are read one by one, whole."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), 20)
        self.file = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def head(self) -> tuple[int, dict[str, str]]:
        """The status (0 at the end of the connection) and the headers of the next answer."""
        line = self.file.readline()
        if not line:
            return 0, {}
        headers = {}
        while (one := self.file.readline().strip()) != b"":
            name, _, value = one.decode().partition(": ")
            headers[name] = value
        return int(line[9:12]), headers

    def answer(self) -> tuple[int, Any]:
        status, headers = self.head()
        content = self.file.read(int(headers["content-length"])) if status >= 200 else b""
        return status, json.loads(content) if content else None

    def probs(self) -> list[float]:
        status, answer = self.answer()
        assert status == 200, answer
        return list(answer["scores"]["probs"])


@contextmanager
def raw(server: Running) -> Iterator[Raw]:
    connection = Raw(server.port)
    try:
        yield connection
    finally:
        connection.file.close()
        connection.socket.close()


def until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def idle(server: Running) -> bool:
    batcher = server.service.batcher
    return (server.app.active, batcher.held_bytes, batcher.arriving, batcher.waiting) == (0, 0, 0, 0)


def test_requests_that_are_sent_at_once_are_answered_in_their_order(server: Running) -> None:
    explain = json.dumps({"rows": [GOLDEN]}).encode()
    slower = b"POST /v1/explain HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(explain), explain)
    prices = [float(price) for price in range(20)]
    with raw(server) as one:
        one.send(slower + HEALTH + b"".join(score_request(price) for price in prices) + HEALTH)
        assert "moved" in one.answer()[1]
        assert one.answer()[1] == {"status": "alive"}
        for price in prices:
            assert one.probs() == pytest.approx([formula({**GOLDEN, "price": price})], rel=1e-6)
        assert one.answer()[1] == {"status": "alive"}
    until(lambda: idle(server))


def test_a_request_may_come_byte_by_byte(server: Running) -> None:
    with raw(server) as one:
        for byte in score_request(2.0):
            one.send(bytes([byte]))
        assert len(one.probs()) == 1


def test_a_client_may_ask_before_it_sends_its_body(server: Running) -> None:
    request = score_request(1.0, 2.0, head=b"expect: 100-continue\r\n")
    head, _, body = request.partition(b"\r\n\r\n")
    with raw(server) as one:
        one.send(head + b"\r\n\r\n")
        assert one.head() == (100, {})
        one.send(body)
        assert len(one.probs()) == 2
    with raw(server) as one:
        one.send(b"POST /v1/score HTTP/1.1\r\nexpect: 100-continue\r\ncontent-length: 999999999\r\n\r\n")
        assert one.answer()[0] == 413
        assert one.answer()[0] == 0
    with raw(server) as one:
        one.send(b"POST /v1/score HTTP/1.1\r\nexpect: wonders\r\ncontent-length: 5\r\n\r\n")
        assert one.answer()[0] == 417


def test_http_1_0_closes_unless_it_is_asked_not_to(server: Running) -> None:
    with raw(server) as one:
        one.send(b"GET /healthz HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        status, headers = one.head()
        assert (status, headers["connection"]) == (200, "keep-alive")
        one.file.read(int(headers["content-length"]))
        one.send(b"GET /healthz HTTP/1.0\r\n\r\n")
        assert one.head()[1]["connection"] == "close"
        assert one.file.read() == b'{"status":"alive"}'


def test_head_has_the_headers_of_get(server: Running) -> None:
    with raw(server) as one:
        one.send(b"HEAD /healthz HTTP/1.1\r\nhost: x\r\n\r\n" + HEALTH)
        heads = [one.head()]
        heads.append(one.head())
        assert one.file.read(18) == b'{"status":"alive"}'
    assert heads[0][1]["content-length"] == heads[1][1]["content-length"] == "18"
    assert heads[0][1]["date"].endswith("GMT")


def test_a_client_that_sends_no_more_is_answered_and_left(server: Running) -> None:
    with raw(server) as one:
        one.send(score_request(1.0) + score_request(2.0, 3.0))
        one.socket.shutdown(socket.SHUT_WR)
        assert len(one.probs()) == 1
        assert len(one.probs()) == 2
        assert one.answer()[0] == 0


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"POST /v1/score HTTP/1.1\r\ncontent-length: 3\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /v1/score HTTP/1.1\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd", 400),
        (b"POST /v1/score HTTP/1.1\r\ncontent-length: 1e3\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nbad header: x\r\n\r\n", 400),
        (b"GET /healthz HTTP/1.1\r\nhost: " + b"x" * 400_000, 431),
        (b"GET /" + b"x" * 400_000, 431),
        (b"POST /v1/score HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n1;" + b"x" * 400_000, 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
    ],
)
def test_what_is_wrong_is_told_and_ends_the_connection(server: Running, request_: bytes, status: int) -> None:
    with raw(server) as one:
        one.send(request_)
        found, answer = one.answer()
        assert found == status
        assert answer["error"]["message"]
        assert one.answer()[0] == 0
    until(lambda: idle(server))


def test_an_upgrade_is_answered_as_a_request_and_nothing_after_it(server: Running) -> None:
    with raw(server) as one:
        one.send(
            b"GET /healthz HTTP/1.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\nwhatever" + HEALTH
        )
        assert one.answer()[0] == 200
        assert one.answer()[0] == 0


def test_absolute_targets_are_understood(server: Running) -> None:
    with raw(server) as one:
        one.send(b"GET http://elsewhere:8000/healthz?x=1 HTTP/1.1\r\nhost: x\r\n\r\n")
        assert one.answer()[0] == 200


def test_too_many_requests_ahead_are_refused() -> None:
    scorer = FakeScorer(delay_s=0.3)
    with running(fake_holder(scorer)) as server, raw(server) as one:
        one.send(score_request(1.0) * (MAX_AHEAD + 10))
        until(lambda: server.app.active == 1)
        scorer.delay_s = 0.0
        statuses = []
        while status := one.answer()[0]:
            statuses.append(status)
        assert set(statuses[:-1]) == {200}
        assert statuses[-1] == 429
        until(lambda: idle(server))


def test_slow_heads_and_idle_newcomers_are_ended() -> None:
    with running(fake_holder(), body_timeout_s=0.3) as server, raw(server) as slow, raw(server) as silent:
        slow.send(b"GET /healthz HT")
        assert slow.answer()[0] == 408
        assert silent.answer()[0] == 0
        until(lambda: server.app.connections == 0)


def test_a_client_that_does_not_read_is_let_go() -> None:
    with running(fake_holder(), body_timeout_s=0.3) as server, raw(server) as one:
        metrics, sent = server.service.metrics, 0

        def answered_or_gone() -> bool:
            answered = metrics.total("recgrad_requests_total", 'route="/",status="200"')
            return answered == sent or not server.app.connections

        while server.app.connections and sent < 5000:  # until no buffer of the system has room for answers
            one.send(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 64)
            sent += 64
            until(answered_or_gone)
        assert not server.app.connections
        assert idle(server)
        with raw(server) as other:
            other.send(HEALTH)
            assert other.answer()[0] == 200


def test_clients_beyond_the_limit_get_429() -> None:
    with running(fake_holder(), max_connections=2) as server, raw(server) as one, raw(server) as two:
        for connection in (one, two):
            connection.send(HEALTH)
            assert connection.answer()[0] == 200
        with raw(server) as three:
            assert three.answer()[0] == 429
        until(lambda: server.app.connections == 2)
        one.send(HEALTH)
        assert one.answer()[0] == 200


def test_slow_bodies_are_not_waited_for_by_others() -> None:
    with running(fake_holder(), max_wait_ms=1000) as server, raw(server) as slow, raw(server) as one:
        slow.send(b"POST /v1/score HTTP/1.1\r\ncontent-length: 100\r\n\r\n{")
        until(lambda: server.app.active == 1)
        until(lambda: server.service.batcher.arriving == 0)
        one.send(score_request(1.0))
        assert len(one.probs()) == 1
        assert server.app.active == 1


def test_ending_answers_what_is_there_and_closes_the_idle() -> None:
    with running(fake_holder(FakeScorer(delay_s=0.3))) as server, raw(server) as busy, raw(server) as still:
        still.send(HEALTH)
        assert still.answer()[0] == 200
        busy.send(score_request(1.0))
        until(lambda: server.app.active == 1)
        server.service.draining = True
        assert still.answer()[0] == 0
        status, headers = busy.head()
        assert (status, headers["connection"]) == (200, "close")
        busy.file.read(int(headers["content-length"]))
        assert busy.answer()[0] == 0
