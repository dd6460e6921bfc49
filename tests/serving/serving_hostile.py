"""Requests that no client should send, drawn from a seed, and what a server must make of them.

    python tests/serving/serving_hostile.py http://127.0.0.1:8000 --requests 10000 [--pid PID]

Each must get a clear answer (a known status other than 500, with JSON) or, where it is not HTTP at
all, a closed connection. In the end the server must be up, score as before, and, with --pid (of its
worker), have kept its memory within a bound.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import socket
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

ARROW = "application/vnd.apache.arrow.stream"
STATUSES = {200, 400, 404, 405, 408, 411, 413, 414, 415, 422, 429, 431, 504}
Request = tuple[str, dict[str, str], bytes]
MAX_GROWTH_MB = 100


class Hostile:
    """A source of hostile requests.

    Args:
        seed: of the draws.
        row: a sound row, as JSON.
    """

    def __init__(self, seed: int, row: dict[str, Any]) -> None:
        self.random = random.Random(seed)
        self.row = row

    def draw(self) -> tuple[str, Request]:
        """A kind, and its path, headers and body."""
        kinds: list[Callable[[], Request]] = [
            self.mutated_json,
            self.wrong_values,
            self.wrong_values,
            self.wrong_form,
            self.deep,
            self.keys,
            self.mutated_arrow,
            self.mutated_arrow,
            self.odd_arrow,
            self.garbage,
        ]
        kind = self.random.choice(kinds)
        return kind.__name__, kind()

    def _json(self, body: bytes | str | Any) -> Request:
        if not isinstance(body, (bytes, str)):
            body = json.dumps(body)
        data = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
        return "/v1/score", {"Content-Type": "application/json"}, data

    def value(self) -> Any:
        """Anything that JSON can say."""
        rng = self.random
        return rng.choice(
            [
                lambda: None,
                lambda: rng.choice([True, False]),
                lambda: rng.choice([0, -1, 2**31, 2**53 + 1, 2**63, -(2**63) - 1, 10**30, 10**400]),
                lambda: rng.choice([0.5, -0.0, 1e308, 5e-324, -1e-9]),
                lambda: rng.choice(
                    ["", "x", "0", "1e5", "nan", "\x00", "\ud800", "💥", "a" * 10_000, "1" * 5000]
                ),
                lambda: [self.value() for _ in range(rng.randrange(4))],
                lambda: {rng.choice(["", "a", "user_id"]): self.value()},
                lambda: [[]] * 50,
            ]
        )()

    def mutated_json(self) -> Request:
        rng = self.random
        body = bytearray(json.dumps({"rows": [self.row] * rng.randrange(1, 4)}).encode())
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(body))
            what = rng.randrange(3)
            if what == 0:
                body[at] = rng.randrange(256)
            elif what == 1:
                del body[at : at + rng.randrange(1, 20)]
            else:
                body[at:at] = rng.choice(
                    [b"NaN", b"1e999", b"\\u0000", b"\\ud800", b"[[[", b"}}", b"\xff", b"-", b"00"]
                )
            if not body:
                break
        return self._json(bytes(body))

    def wrong_values(self) -> Request:
        rng = self.random
        rows = []
        for _ in range(rng.randrange(1, 5)):
            row = dict(self.row)
            for name in rng.sample(sorted(row), rng.randrange(0, len(row) + 1)):
                if rng.random() < 0.2:
                    del row[name]
                else:
                    row[name] = self.value()
            rows.append(row)
        body: dict[str, Any] = {"rows": rows}
        if rng.random() < 0.3:
            body["on_bad_row"] = "null"
        if rng.random() < 0.3:
            body = {"user": rows[0], "items": rows}
        text = json.dumps(body)
        return self._json(text.replace("1e+308", rng.choice(["1e999", "-1e999", "1e308"])))

    def wrong_form(self) -> Request:
        rng = self.random
        return self._json(
            rng.choice(
                [
                    {"rows": self.value()},
                    {"user": self.value(), "items": self.value()},
                    {"rows": [self.value()]},
                    {"rows": [{}] * rng.choice([1, 100, 20_000])},
                    {"rows": [], "user": {}, "items": []},
                    {"on_bad_row": self.value(), "rows": []},
                    {"": self.row},
                    self.value(),
                    {"user": {}, "items": [self.value() for _ in range(5)]},
                ]
            )
        )

    def deep(self) -> Request:
        depth = self.random.choice([10, 900, 1100, 100_000, 1_000_000])
        mark = self.random.choice([(b"[", b"]"), (b'{"a":', b"}")])
        value = mark[0] * depth + b"1" + mark[1] * depth
        name = self.random.choice(sorted(self.row)).encode()
        return self._json(b'{"rows": [{"' + name + b'": ' + value + b"}]}")

    def keys(self) -> Request:
        rng = self.random
        count = rng.choice([1, 1000, 50_000])
        row = {**self.row, **{f"k{rng.getrandbits(40)}": at for at in range(count)}}
        twice = json.dumps(self.row)[:-1] + ", " + json.dumps(self.row)[1:]
        return self._json(rng.choice([{"rows": [row]}, '{"rows": [' + twice + "]}"]))

    def _stream(self, table: pa.Table, **options: Any) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
            writer.write_table(table)
        return sink.getvalue().to_pybytes()

    def _arrow(self, body: bytes) -> Request:
        query = self.random.choice(["", "?on_bad_row=null", "?on_bad_row=%00", "?x=1"])
        return f"/v1/score{query}", {"Content-Type": ARROW}, body

    def mutated_arrow(self) -> Request:
        rng = self.random
        body = bytearray(self._stream(pa.Table.from_pylist([self.row] * rng.randrange(1, 5))))
        for _ in range(rng.randrange(1, 8)):
            body[rng.randrange(len(body))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
        if rng.random() < 0.3:
            del body[rng.randrange(len(body)) :]
        return self._arrow(bytes(body))

    def odd_arrow(self) -> Request:
        rng = self.random
        name = rng.choice(sorted(self.row))
        sound = pa.Table.from_pylist([self.row])
        odd = rng.choice(
            [
                pa.array([[[[1]]]]),
                pa.array([{"a": 1}]),
                pa.array([None]),
                pa.array(["x"]).dictionary_encode(),
                pa.array([b"\xff\xfe"]),
                pa.array([1], pa.timestamp("ns")),
                pa.array([True]),
                pa.array([float("nan")]),
                pa.array([float("inf")], pa.float32()),
                pa.array([2**64 - 1], pa.uint64()),
                pa.UnionArray.from_dense(
                    pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])]
                ),
                pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["x"])),
            ]
        )
        table = sound.set_column(sound.column_names.index(name), name, odd)
        bodies = [
            self._stream(table),
            self._stream(sound.select([])),
            self._stream(pa.table({"z": pa.nulls(10**6)})),
            self._stream(pa.table({name: np.zeros(10**6)}), compression="zstd"),
            self._stream(sound.append_column(name, odd)),
        ]
        return self._arrow(rng.choice(bodies))

    def garbage(self) -> Request:
        rng = self.random
        kind = rng.choice(
            ["application/json", ARROW, "text/html", "", "x" * 5000, "application/json; charset=\x7f"]
        )
        path = rng.choice(
            ["/v1/score", "/v1/explain", "/nothing", "/" + "x" * 3000, "/v1/score?" + "a&" * 1000]
        )
        return path, {"Content-Type": kind}, rng.randbytes(rng.choice([0, 1, 100, 100_000]))

    def raw(self) -> bytes:
        """Bytes of a connection that are hardly HTTP."""
        rng = self.random
        post = b"POST /v1/score HTTP/1.1\r\nhost: x\r\n"
        return rng.choice(
            [
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + rng.randbytes(50),
                b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + rng.randbytes(30),
                b"GET / HTTP/9.9\r\n\r\n",
                b"GET\r\n\r\n",
                post + b"content-length: 5, 6\r\n\r\nabcde",
                post + b"content-length: -5\r\n\r\n",
                post + b"content-length: 99999999999999999999\r\n\r\n",
                post + b"transfer-encoding: chunked\r\n\r\nZZ\r\n",
                post + b"transfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
                post + b"transfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
                b"GET /healthz HTTP/1.1\r\n" + b"x: y\r\n" * 500 + b"\r\n",
                b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + b"x" * 100_000,
                b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
                b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 50,
                b"BREW /v1/score HTTP/1.1\r\nhost: x\r\n\r\n",
                b"GET http://elsewhere/healthz HTTP/1.1\r\nhost: x\r\n\r\n",
                b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n",
                b"GET /healthz HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
                rng.randbytes(200),
            ]
        )


def send(port: int, request: Request, timeout_s: float = 30.0) -> tuple[int, bytes]:
    """The status and body of an answer."""
    path, headers, body = request
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.putrequest("POST", path)
        for name, value in headers.items():
            connection.putheader(name, value.encode("latin-1"))
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def send_raw(port: int, data: bytes, timeout_s: float = 30.0) -> bytes:
    """What comes back for raw bytes, until the server closes or half a second passes without a byte."""
    with socket.create_connection(("127.0.0.1", port), timeout_s) as connection:
        try:
            connection.sendall(data)
            connection.settimeout(0.5)
            return connection.recv(1 << 16)
        except (ConnectionError, TimeoutError):
            return b""


def check(request: Request, status: int, body: bytes) -> None:
    """Raise an AssertionError unless an answer is clear."""
    assert status in STATUSES, (status, body[:500], request[1], request[2][:500])
    if body:
        answer = json.loads(body) if body[:1] in b"{[" else None
        if status != 200 and answer is not None:
            message = answer["error"]["message"]
            assert message, (status, body[:500])
            assert len(message) < 2000, (status, len(message))


def attack(port: int, count: int, seed: int, row: dict[str, Any]) -> Counter[str]:
    """Send hostile requests, and count what became of them."""
    hostile = Hostile(seed, row)
    counts: Counter[str] = Counter()
    for number in range(count):
        if number % 10 == 9:
            answer = send_raw(port, hostile.raw())
            counts[f"raw {answer[9:12].decode('latin-1') or 'closed'}"] += 1
            continue
        kind, request = hostile.draw()
        status, body = send(port, request)
        check(request, status, body)
        counts[f"{kind} {status}"] += 1
    return counts


def resident_mb(pid: int) -> float:
    with open(f"/proc/{pid}/statm", "rb") as file:
        return int(file.read().split()[1]) * 4096 / 2**20


def slow_clients(port: int, count: int) -> list[socket.socket]:
    """Connections that promise a body and send a few bytes of it."""
    head = b"POST /v1/score HTTP/1.1\r\nhost: x\r\n"
    head += b"content-length: 100000\r\n\r\n{"
    opened = []
    for _ in range(count):
        connection = socket.create_connection(("127.0.0.1", port), 10)
        connection.sendall(head)
        opened.append(connection)
    return opened


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pid", type=int)
    args = parser.parse_args()
    port = int(args.url.rpartition(":")[2].strip("/"))
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET", "/v1/model")
    row = json.loads(connection.getresponse().read())["golden_row"]
    sound: Request = ("/v1/score", {"Content-Type": "application/json"}, json.dumps({"rows": [row]}).encode())
    before = send(port, sound)
    assert before[0] == 200, before
    memory = resident_mb(args.pid) if args.pid else 0.0
    slow = slow_clients(port, 50)
    counts = attack(port, args.requests, args.seed, row)
    for size in (10, 100):
        status, _ = send(port, ("/v1/score", {}, b"[" * (size << 20)))
        counts[f"{size} MB {status}"] += 1
        assert status == 413, status
    for connection_ in slow:
        connection_.close()
    after = send(port, sound)
    assert after == before, (before, after)
    for name, number in sorted(counts.items()):
        print(f"{number:7,}  {name}")
    if args.pid:
        grown = resident_mb(args.pid)
        print(f"memory of the worker: {memory:.0f} MB before, {grown:.0f} MB after")
        assert grown - memory < MAX_GROWTH_MB
    print("the server is up and scores as before")
    return 0


if __name__ == "__main__":
    sys.exit(main())
