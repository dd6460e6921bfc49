"""A load of HTTP requests: wrk where it is installed, else a client of raw sockets with prepared bytes.

wrk is a C program that is never the limit of a Python server. The client here costs some 10 µs of a
core of its own for each request, and is not the limit either.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import socket
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

DRAIN_S = 10.0

SCRIPT = """
wrk.method = "POST"
local file = io.open("{body}", "rb")
wrk.body = file:read("*all")
file:close()
wrk.headers["content-type"] = "application/json"
local threads = {{}}
function setup(thread) table.insert(threads, thread) end
function init(args) full = 0; other = 0 end
function response(status, headers, body)
  if status == 429 then full = full + 1 elseif status ~= 200 then other = other + 1 end
end
function done(summary, latency, requests)
  local full, other = 0, 0
  for _, thread in ipairs(threads) do
    full = full + thread:get("full")
    other = other + thread:get("other")
  end
  local e = summary.errors
  io.write(string.format(
    '\\nRESULT {{"requests": %d, "seconds": %f, "p50": %f, "p99": %f, "full": %d, "failed": %d}}\\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e6, latency:percentile(99) / 1e6,
    full, other + e.connect + e.read + e.write + e.timeout))
end
"""


@dataclass(frozen=True)
class Load:
    """What a load found.

    Attributes:
        per_second: answers with scores.
        p50: median latency in seconds.
        p99: of all answers.
        full: answers 429.
        failed: other answers, and connections that broke.
        requests: all of them.
    """

    per_second: float
    p50: float
    p99: float
    full: int
    failed: int
    requests: int


def median_load(loads: Sequence[Load]) -> Load:
    """Medians of several loads, and sums of what is counted."""
    middle = {name: median(getattr(one, name) for one in loads) for name in ("per_second", "p50", "p99")}
    counts = {name: sum(getattr(one, name) for one in loads) for name in ("full", "failed", "requests")}
    return Load(**middle, **counts)


def has_wrk() -> bool:
    return shutil.which("wrk") is not None


def load(url: str, body: bytes, clients: int, seconds: float, core: int | None = None) -> Load:
    """Send one body again and again over `clients` connections, each as soon as it has its answer."""
    if has_wrk():
        return with_wrk(url, body, clients, seconds, core)
    return with_sockets(url, body, clients, seconds, core)


def with_wrk(url: str, body: bytes, clients: int, seconds: float, core: int | None) -> Load:
    with tempfile.TemporaryDirectory() as folder:
        path, script = Path(folder) / "body", Path(folder) / "load.lua"
        path.write_bytes(body)
        script.write_text(SCRIPT.format(body=path))
        pin = ["taskset", "-c", str(core)] if core is not None and shutil.which("taskset") else []
        # wrk knows whole seconds only.
        line = [*pin, "wrk", "-t1", f"-c{clients}", f"-d{max(1, round(seconds))}s", "--timeout", "20s"]
        done = subprocess.run([*line, "-s", str(script), url], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.rpartition("RESULT ")[2])
    return Load(
        (found["requests"] - found["full"] - found["failed"]) / found["seconds"],
        found["p50"],
        found["p99"],
        found["full"],
        found["failed"],
        found["requests"],
    )


class _Client:
    """One connection: sends the message, reads the answer, sends again."""

    def __init__(self, address: tuple[str, int], message: bytes, poll: select.epoll) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setblocking(False)
        self._message, self._poll = memoryview(message), poll
        self._answer, self._wanted = b"", 0
        poll.register(self.socket, select.EPOLLIN)

    def begin(self) -> None:
        self.started = time.perf_counter()
        self._left = self._message
        self.write()

    def write(self) -> None:
        """Send what the socket takes; the rest when it has room."""
        blocked = False
        while self._left and not blocked:
            try:
                self._left = self._left[self.socket.send(self._left) :]
            except BlockingIOError:
                blocked = True
        self._poll.modify(self.socket, select.EPOLLOUT | select.EPOLLIN if blocked else select.EPOLLIN)

    def read(self) -> int:
        """Read what is there; the status when the answer is whole, else 0."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("closed")
        self._answer = self._answer + data if self._answer else data
        if not self._wanted:
            head = self._answer.find(b"\r\n\r\n")
            if head < 0:
                return 0
            place = self._answer.index(b"content-length: ") + 16
            self._wanted = head + 4 + int(self._answer[place : self._answer.index(b"\r", place)])
        if len(self._answer) < self._wanted:
            return 0
        status = int(self._answer[9:12])
        self._answer, self._wanted = b"", 0
        return status


def _drain(poll: select.epoll, of: dict[int, _Client]) -> None:
    """Wait for answers that are due, uncounted: a server would compute them while another is measured."""
    until = time.perf_counter() + DRAIN_S
    while of and time.perf_counter() < until:
        for number, event in poll.poll(0.1):
            try:
                if event & select.EPOLLOUT:
                    of[number].write()
                if event & ~select.EPOLLOUT and of[number].read():
                    poll.unregister(of.pop(number).socket)
            except OSError:
                poll.unregister(of.pop(number).socket)


def with_sockets(url: str, body: bytes, clients: int, seconds: float, core: int | None) -> Load:
    """The load by raw sockets with prepared bytes: some 10 µs of a core for each request."""
    host, _, rest = url.removeprefix("http://").partition(":")
    port, _, path = rest.partition("/")
    head = f"{'POST' if body else 'GET'} /{path} HTTP/1.1\r\nhost: {host}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    poll, times, statuses, broken = select.epoll(), [], Counter[int](), 0
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    try:
        made = [_Client((host, int(port)), head.encode() + body, poll) for _ in range(clients)]
        of = {client.socket.fileno(): client for client in made}
        start = time.perf_counter()
        for client in made:
            client.begin()
        while of and time.perf_counter() < start + seconds:
            for number, event in poll.poll(1.0):
                client = of[number]
                try:
                    if event & select.EPOLLOUT:
                        client.write()
                    status = client.read() if event & ~select.EPOLLOUT else 0
                except OSError:
                    broken += 1
                    poll.unregister(of.pop(number).socket)
                    continue
                if status:
                    now = time.perf_counter()
                    statuses[status] += 1
                    times.append(now - client.started)
                    client.begin()
        taken = time.perf_counter() - start
        _drain(poll, of)
    finally:
        os.sched_setaffinity(0, before)
    for client in made:
        client.socket.close()
    poll.close()
    failed = broken + sum(count for status, count in statuses.items() if status not in (200, 429))
    times.sort()
    return Load(
        statuses[200] / taken,
        times[len(times) // 2] if times else float("nan"),
        times[min(len(times) - 1, int(0.99 * len(times)))] if times else float("nan"),
        statuses[429],
        failed,
        sum(statuses.values()),
    )


def cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))
