"""`recgrad serve` of a real bundle: workers that die, bundles and files that are replaced, the end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from serving_hostile import attack, resident_mb, send, slow_clients
from serving_real import ROW, Serving, golden, put_in_place, renamed_version, write_real_bundle

from recgrad.errors import RecgradError
from recgrad.serving import supervisor
from recgrad.serving.scorer import Scorer

pytestmark = pytest.mark.slow

ITEMS = pa.table({"item_id": [1, 2, 3], "price": [1.0, 3.5, 9.0], "city": ["Bonn", "Oslo", "Rome"]})


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two versions of a bundle, and one that is damaged."""
    folder = tmp_path_factory.mktemp("real")
    first = write_real_bundle(folder / "first")
    second = renamed_version(first, folder / "second", 4)
    bad = renamed_version(first, folder / "bad", 5)
    rows = next(iter(sorted(bad.glob("tables/*.rows"))))
    content = bytearray(rows.read_bytes())
    content[len(content) // 2] ^= 1
    rows.write_bytes(bytes(content))
    place = folder / "served"
    place.symlink_to(first)
    return {"first": first, "second": second, "bad": bad, "served": place}


@pytest.fixture(scope="module")
def server(bundles: dict[str, Path]) -> Iterator[Serving]:
    """Two workers with stored item features."""
    pq.write_table(ITEMS, bundles["served"].with_name("items.parquet"))
    stored = ["--item_features", str(bundles["served"].with_name("items.parquet")), "--item_key", "item_id"]
    found = Serving(bundles["served"], "--workers", "2", *stored)
    found.until(lambda: starts(found) == 2)
    yield found
    found.close()


def test_a_bundle_loads_without_torch_and_pandas(bundles: dict[str, Path]) -> None:
    pytest.importorskip("pandas")
    code = (
        "import sys; from recgrad.serving.scorer import Scorer; scorer = Scorer.load(sys.argv[1]); "
        "assert scorer.golden.num_rows; assert not {'torch', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(bundles["first"])], check=True, timeout=120)


@contextmanager
def load(server: Serving) -> Iterator[list[str]]:
    """Clients that ask one request after another; what went wrong is in the list."""
    wrong: list[str] = []
    done = threading.Event()
    counts = [0, 0, 0]

    def client(number: int) -> None:
        while not done.is_set():
            try:
                status, answer = server.ask("POST", "/v1/score", {"rows": [ROW]})
                if status != 200:
                    wrong.append(f"{status} {answer}")
            except OSError as error:
                wrong.append(repr(error))
            counts[number] += 1

    threads = [threading.Thread(target=client, args=(i,)) for i in range(len(counts))]
    for thread in threads:
        thread.start()
    try:
        yield wrong
    finally:
        done.set()
        for thread in threads:
            thread.join(60)
        assert min(counts) > 3


def every_worker_serves(server: Serving, version: str) -> bool:
    """Several connections reach all workers."""
    return all(server.version() == version for _ in range(12))


def test_scores_are_those_of_the_bundle(server: Serving, bundles: dict[str, Path]) -> None:
    table = golden()
    wanted = Scorer.load(bundles["first"]).score(table)["probs"]
    assert server.score(*table.to_pylist())["scores"]["probs"] == pytest.approx(wanted.tolist(), abs=1e-7)


def test_a_killed_worker_is_replaced_and_others_serve_on(server: Serving) -> None:
    before, begun = server.workers(), starts(server)
    os.kill(before[0], signal.SIGKILL)
    # The kernel has closed its socket when it is gone; the other worker has all that come then.
    server.until(lambda: before[0] not in server.workers())
    for _ in range(20):
        server.score()
    server.until(lambda: starts(server) > begun)
    assert before[1] in server.workers()
    assert any("was killed by signal 9; it is started again" in line for line in server.said)


def test_bundles_are_swapped_under_load_without_a_failed_request(
    server: Serving, bundles: dict[str, Path]
) -> None:
    first = server.version()
    with load(server) as wrong:
        put_in_place(bundles["second"], bundles["served"])
        seen = [first]
        # Kept as it was seen: the next answer may be of a worker that still has the first.
        server.until(lambda: seen.append(server.version()) or seen[-1] != first)
        server.until(lambda: every_worker_serves(server, seen[-1]))
        put_in_place(bundles["first"], bundles["served"])
        server.until(lambda: every_worker_serves(server, first))
    assert wrong == []


def test_a_bad_bundle_is_refused_and_a_worker_that_is_started_then_serves_the_old_one(
    server: Serving, bundles: dict[str, Path]
) -> None:
    good = server.version()
    for bad in (bundles["bad"], bundles["bad"] / "gone"):
        heard = len(server.said)
        put_in_place(bad, bundles["served"])
        server.until(lambda: any("the old one stays" in line for line in server.said[heard:]))  # noqa: B023
        for worker in server.workers():
            kill_and_wait(server, worker)
        assert every_worker_serves(server, good)
        assert server.score()["scores"]
    put_in_place(bundles["second"], bundles["served"])
    server.until(lambda: server.version() != good)
    put_in_place(bundles["first"], bundles["served"])
    server.until(lambda: every_worker_serves(server, good))


def kill_and_wait(server: Serving, worker: int) -> None:
    """Kill a worker and wait until another serves in its place."""
    before = starts(server)
    os.kill(worker, signal.SIGKILL)
    server.until(lambda: worker not in server.workers())
    server.until(lambda: starts(server) > before)


def starts(server: Serving) -> int:
    """Workers that have begun to serve, since the server has; those of all workers together."""
    text = server.ask("GET", "/metrics")[1]
    lines = [line for line in text.splitlines() if line.startswith("recgrad_worker_starts_total")]
    return sum(int(float(line.split()[-1])) for line in lines)


def test_stored_features_are_replaced_while_serving_and_bad_files_are_refused(
    server: Serving, bundles: dict[str, Path]
) -> None:
    path = bundles["served"].with_name("items.parquet")
    asked = {"user_id": 1, "item_id": 2, "tags": ["a", "b"]}
    assert server.score(asked)["scores"] == server.score(ROW)["scores"]
    partial = path.with_suffix(".partial")
    pq.write_table(ITEMS.set_column(1, "price", pa.array([1.0, 8.0, 9.0])), partial)
    with load(server) as wrong:
        os.replace(partial, path)
        changed = server.score({**ROW, "price": 8.0})["scores"]
        server.until(lambda: all(server.score(asked)["scores"] == changed for _ in range(8)))
        heard = len(server.said)
        partial.write_bytes(b"PAR1 and no more")
        os.replace(partial, path)
        server.until(lambda: any("items.parquet, the old one stays" in line for line in server.said[heard:]))
    assert wrong == []
    kill_and_wait(server, server.workers()[0])
    assert all(server.score(asked)["scores"] == changed for _ in range(8))


def test_hostile_requests_get_clear_answers_and_both_workers_stay_up(server: Serving) -> None:
    workers, before = server.workers(), server.score()
    memory = sum(map(resident_mb, workers))
    slow = slow_clients(server.port, 10)
    counts = attack(server.port, 300, 11, ROW)
    assert send(server.port, ("/v1/score", {}, b"[" * (100 << 20)))[0] == 413
    for connection in slow:
        connection.close()
    assert server.score() == before
    assert server.workers() == workers
    assert sum(map(resident_mb, workers)) - memory < 400
    assert len(counts) > 15  # the draws reach many kinds of answers


def test_a_second_server_cannot_take_the_port(server: Serving, bundles: dict[str, Path]) -> None:
    words = ["serve", str(bundles["first"]), "--port", str(server.port)]
    done = subprocess.run(
        [sys.executable, "-m", "recgrad", *words], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 2
    assert f"port {server.port} of 127.0.0.1 is in use by another process" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_bad_bundle_is_no_start(bundles: dict[str, Path]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "recgrad", "serve", str(bundles["bad"]), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 2
    assert "is damaged (its checksum is wrong); copy the bundle again" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_permission_for_a_port_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: socket.socket, address: object) -> None:
        raise PermissionError(13, "Permission denied")

    class Refusing(socket.socket):
        bind = refuse  # type: ignore[assignment]

    monkeypatch.setattr(supervisor.socket, "socket", Refusing)
    with pytest.raises(RecgradError, match="no permission for port 80; those below 1024 need root"):
        supervisor.hold_port(socket.AF_INET, ("127.0.0.1", 80))


def test_sigterm_answers_requests_in_flight_and_ends(server: Serving) -> None:
    """The last test of this server: a request whose body has half arrived is answered when it has."""
    body = json.dumps({"rows": [ROW]}).encode()
    head = (
        f"POST /v1/score HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(body)}"
    )
    with socket.create_connection(("127.0.0.1", server.port), 60) as client:
        client.sendall(head.encode() + b"\r\n\r\n" + body[:10])
        time.sleep(0.5)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        client.sendall(body[10:])
        answer = client.recv(1 << 16)
    assert answer.startswith(b"HTTP/1.1 200"), answer
    assert b"probs" in answer
    assert server.process.wait(60) == 0
    assert any("requests in flight are answered first" in line for line in server.said)
    with pytest.raises(OSError, match="refused"):
        server.score()
