"""A worker's memory stays bounded, whatever bodies it is sent."""

from __future__ import annotations

import gc
import subprocess
import sys
from collections.abc import Iterator

import pytest
from serving_fake import GOLDEN, fake_holder, running
from serving_hostile import Hostile, send

from recgrad.serving.connection import Message
from recgrad.serving.memory import MemoryWatch, give_back
from recgrad.serving.scoring import Body

MEGABYTE = 1 << 20


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collector")
def test_refused_requests_are_freed_at_once() -> None:
    """No cycle keeps a body until the next full collection, before which many may come."""
    hostile = Hostile(3, GOLDEN)
    with running(fake_holder(), max_body_mb=1) as server:
        for _ in range(20):
            for path in ("/nothing", "/v1/score?on_bad_row=sometimes"):
                send(server.port, (path, {}, b"[1]"))
            for request in (hostile.mutated_json(), hostile.deep(), hostile.wrong_values(), hostile.keys()):
                send(server.port, request)
            send(server.port, ("/v1/score", {}, b"[" * (2 * MEGABYTE)))
        sound = ("/v1/score", {"Content-Type": "application/json"}, b'{"rows": []}')
        send(server.port, sound)  # what was read last may still be in the hands of its connection
        alive = [one for one in gc.get_objects() if type(one) in (Message, Body)]
        assert len(alive) <= 2


@pytest.mark.skipif(sys.platform != "linux", reason="asks the C library of Linux")
def test_what_malloc_keeps_is_given_back() -> None:
    # In a process of its own: a heap that others have used has holes, and malloc may shrink by itself.
    program = f"""
from {give_back.__module__} import give_back, resident_bytes
blocks = [bytearray(64 << 10) for _ in range(6000)]  # too small for pages of their own
del blocks[::2]  # each hole lies between blocks that stay, so that malloc cannot shrink
before = resident_bytes()
give_back()
print((before - resident_bytes()) >> 20)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert int(done.stdout) > 100, done.stderr


def test_memory_is_given_back_when_it_has_grown() -> None:
    sizes = iter([100, 120, 140, 110, 139, 142, 130, 90, 121, 95])
    calls = []
    watch = MemoryWatch(lambda: next(sizes), lambda: calls.append(1), step_bytes=30)
    assert [watch.look() for _ in range(6)] == [120, 110, 139, 130, 90, 95]
    assert len(calls) == 3


def test_the_server_looks_at_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    looked = []
    monkeypatch.setattr(MemoryWatch, "look", lambda self: looked.append(1) or 5 * MEGABYTE)
    with running(fake_holder()) as server:
        assert server.service.metrics.total("recgrad_resident_bytes") == 5 * MEGABYTE
    assert looked
