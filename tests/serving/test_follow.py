"""`recgrad serve --follow`: deltas are taken up by all workers under load, without a failed request."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from serving_real import ROW, Serving, write_real_bundle

from recgrad.embedding.deltas.changed import ChangedTable
from recgrad.embedding.deltas.record import DeltaRecord
from recgrad.embedding.deltas.writing import write_delta
from recgrad.serving.following import FollowingScorer
from recgrad.serving.manifest import read_manifest

pytestmark = pytest.mark.slow


def write(bundle: Path, folder: Path, number: int) -> None:
    """A delta with other rows of all tables, and other dense weights."""
    manifest = read_manifest(bundle)
    record = DeltaRecord(
        "stream", number, f"id{number - 1}", 10 * number, 0, 1e9 + number, "NONE", id=f"id{number}"
    )
    random = np.random.default_rng(number)
    program = manifest.programs["score"]
    content = (bundle / program.file).read_bytes()
    dense = {
        w.name: np.frombuffer(content[w.offset : w.offset + w.num_bytes], np.float32) * (1 + 0.1 * number)
        for w in program.weights
    }
    nothing = np.empty(0, np.int64)
    tables = [
        ChangedTable(
            t.name,
            t.dim,
            "",
            np.arange(t.num_rows),
            random.normal(size=(t.num_rows, t.dim)).astype(np.float32),
            nothing,
            None,
        )
        for t in manifest.tables
    ]
    write_delta(folder, "d", record, tables, dense)


def numbers(server: Serving) -> float:
    lines = server.ask("GET", "/metrics")[1].splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("recgrad_delta_number "))


def test_all_workers_take_up_deltas_without_a_failed_request(tmp_path: Path) -> None:
    start = {"stream": "stream", "number": 1, "id": "id1", "step": 10}
    bundle = write_real_bundle(tmp_path / "bundle", deltas=start)
    folder = tmp_path / "deltas"
    write(bundle, folder, 2)
    server = Serving(bundle, "--workers", "2", "--follow", str(folder))
    wrong: list[object] = []
    done = threading.Event()

    def client() -> None:
        while not done.is_set():
            status, answer = server.ask("POST", "/v1/score", {"rows": [ROW]})
            if status != 200:
                wrong.append((status, answer))

    thread = threading.Thread(target=client)
    try:
        server.until(lambda: numbers(server) == 2)
        first = server.score()
        thread.start()
        for number in (4, 3, 5, 6):  # 4 waits for 3
            write(bundle, folder, number)
        server.until(lambda: numbers(server) == 6)
        done.set()
        thread.join()
        assert not wrong
        expected = FollowingScorer(bundle, folder)
        expected.follow()
        row = pa.Table.from_pylist([ROW], expected.schema)
        wanted = [float(v[0]) for v in expected.score(row).values()]
        answers = [server.score() for _ in range(8)]
        assert first != answers[0]
        for answer in answers:
            assert [float(answer["scores"][name][0]) for name in expected.outputs] == pytest.approx(
                wanted, rel=1e-6
            )
        card = server.ask("GET", "/v1/model")[1]["delta"]
        assert (card["number"], card["step"], card["refused"]) == (6, 60, None)
        assert card["age_s"] > 0
        manifest = next(folder.glob("*_00000006_*.json")).read_text()
        (folder / "d_00000007_step_70.json").write_text(manifest.replace('"number"', '"numbre"'))
        server.until(lambda: server.ask("GET", "/v1/model")[1]["delta"]["refused"] is not None)
        assert server.score()["scores"] == answers[0]["scores"]
    finally:
        done.set()
        server.close()
