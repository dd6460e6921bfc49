"""A load of HTTP requests: wrk where it is installed, else a client of raw sockets on asyncio.

wrk is a C program that is never the limit of a Python server. The client here costs some 30 µs of a
core for each request, so for small requests it limits what it measures; results say which was used.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

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
    return asyncio.run(with_sockets(url, body, clients, seconds))


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


async def with_sockets(url: str, body: bytes, clients: int, seconds: float) -> Load:
    host, _, rest = url.removeprefix("http://").partition(":")
    port, _, path = rest.partition("/")
    head = f"POST /{path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    message = f"{head}content-length: {len(body)}\r\n\r\n".encode() + body
    until = time.perf_counter() + seconds
    times: list[float] = []
    statuses: Counter[int] = Counter()

    async def one() -> None:
        reader, writer = await asyncio.open_connection(host, int(port))
        while time.perf_counter() < until:
            start = time.perf_counter()
            writer.write(message)
            answer = await reader.readuntil(b"\r\n\r\n")
            length = int(answer.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            statuses[int(answer[9:12])] += 1
            times.append(time.perf_counter() - start)
        writer.close()

    broken = await asyncio.gather(*(one() for _ in range(clients)), return_exceptions=True)
    failed = sum(count for status, count in statuses.items() if status not in (200, 429))
    failed += sum(isinstance(one, BaseException) for one in broken)
    times.sort()
    total = sum(statuses.values())
    return Load(
        statuses[200] / seconds,
        times[len(times) // 2] if times else float("nan"),
        times[min(len(times) - 1, int(0.99 * len(times)))] if times else float("nan"),
        statuses[429],
        failed,
        total,
    )


def cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))
