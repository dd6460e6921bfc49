"""Servers as a benchmark starts them: each in a process of its own, on given cores."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PEER = Path(__file__).with_name("fastapi_server.py")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def running(command: Sequence[str], port: int, core: int | None = None) -> Iterator[str]:
    """Start a server; gives its address when it is ready, and ends it."""
    pin = [] if core is None else ["taskset", "-c", str(core)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*pin, sys.executable, *command],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(1200):
            try:
                get(f"{url}/readyz")
                break
            except OSError:
                if process.poll() is not None:
                    raise RuntimeError(f"{' '.join(command)} ended with {process.returncode}") from None
                time.sleep(0.1)
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


def recgrad_server(bundle: Path, core: int | None = None, *options: str) -> Any:
    port = free_port()
    return running(["-m", "recgrad", "serve", str(bundle), "--port", str(port), *options], port, core)


def peer_server(model: Path, core: int | None = None) -> Any:
    port = free_port()
    return running([str(PEER), str(model), "--port", str(port)], port, core)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=30) as answer:
        return str(answer.read().decode())


def post(url: str, body: bytes) -> Any:
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)
