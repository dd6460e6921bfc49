from __future__ import annotations

import json
import os

from serving_fake import GOLDEN, fake_holder, running
from serving_hostile import attack, resident_mb, send, slow_clients


def test_hostile_requests_get_clear_answers_and_the_server_stays_up() -> None:
    sound = ("/v1/score", {"Content-Type": "application/json"}, json.dumps({"rows": [GOLDEN]}).encode())
    with running(fake_holder(), body_timeout_s=2.0, max_queue=64) as server:
        before = send(server.port, sound)
        memory = resident_mb(os.getpid())
        slow = slow_clients(server.port, 10)
        counts = attack(server.port, 300, 7, GOLDEN)
        for connection in slow:
            connection.close()
        assert send(server.port, ("/v1/score", {}, b"[" * (30 << 20)))[0] == 413
        assert send(server.port, sound) == before
        assert resident_mb(os.getpid()) - memory < 400
    assert sum(counts.values()) == 300
    assert len(counts) > 15  # the draws reach many kinds of answers
