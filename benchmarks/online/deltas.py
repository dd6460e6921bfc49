"""What deltas cost a run, and how soon what was trained is served."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from online.subject import BATCH, DIM, TABLES, Subject
from results.bars import Bar

import recgrad
from recgrad.embedding.deltas.changed import ChangedTable
from recgrad.embedding.deltas.reading import Delta, Part
from recgrad.embedding.deltas.record import DeltaRecord, published, read_record
from recgrad.embedding.deltas.writing import write_delta
from recgrad.embedding.local.changes import ChangeLog
from recgrad.embedding.mapped.moving import MovingTables
from recgrad.embedding.mapped.writing import write_table
from recgrad.serving.manifest import read_manifest

DUMP_STEPS = 1000  # between two deltas, as the config has it by default
BOUND_SECS = 5.0  # beyond the interval, for 1 M rows: what docs/online.md promises
SERVED_ROWS = 1_000_000
CONFIG = """
eval_input_path: ""
train_config {
  num_steps: 2 use_tensorboard: false delta_embedding_dump_config { dump_interval_steps: 1 }
  sparse_optimizer { adagrad_optimizer { lr: 0.1 } } dense_optimizer { adam_optimizer { lr: 0.01 } }
}
data_config { dataset_type: ParquetDataset fg_mode: FG_NONE batch_size: 8 label_fields: "label" }
feature_configs { id_feature { feature_name: "item" num_buckets: %d embedding_dim: 16 } }
model_config {
  feature_groups { group_name: "deep" group_type: DEEP feature_names: ["item"] }
  multi_tower { towers { input: "deep" mlp { hidden_units: [8] } } final { hidden_units: [4] } }
  losses { binary_cross_entropy {} } metrics { auc {} }
}
"""


def bench_delta(steps: int = 60) -> list[Bar]:
    """What a delta of 1 M changed rows costs the run, and how fast a served table takes it up."""
    random = np.random.default_rng(6)
    plain, tracked = Subject("plain", None, 1 << 30), Subject("tracked", None, 1 << 30)
    logs = {name: ChangeLog(table) for name, table in tracked.engine.tables.items()}
    gradient = torch.randn(BATCH, TABLES * DIM) * 0.01
    rows = 1_000_000 // TABLES + 1
    for step in range(steps):
        first = 7 * rows * step // steps  # about 1 M rows are changed in the second half
        for subject in (plain, tracked) if step % 2 else (tracked, plain):
            numbers = random.integers(first, first + rows // 4, (BATCH, TABLES))
            subject.step(numbers, gradient)
    step_seconds = median(plain.seconds)
    pairs = zip(tracked.seconds, plain.seconds, strict=True)
    marking = max(median(own / other for own, other in pairs) - 1, 0.0)
    for log in logs.values():
        log.take()
    for begin in range(0, rows, BATCH):
        tracked.step(np.repeat((begin + np.arange(BATCH))[:, None] % rows, TABLES, axis=1), gradient)
    with TemporaryDirectory() as name:
        folder = Path(name)
        begin = time.process_time()
        tables = [ChangedTable(t, DIM, t, *log.take()) for t, log in logs.items()]
        changed = sum(len(table.keys) for table in tables)
        record = write_delta(folder, "d", DeltaRecord("s", 1, "", 1, 0, 0.0, "NONE"), tables, {})
        dump = time.process_time() - begin
        bundle = folder / "bundle"
        bundle.mkdir()
        records = []
        for i, table in enumerate(tracked.engine.tables.values()):
            touched = len(table.touched_rows()[0])
            records.append(
                write_table(bundle, str(i), table.spec, touched, table.pieces(), precision="FP32", seed=0)
            )
        served = MovingTables(bundle, records, [])
        for part in Delta(folder, record).parts():  # compiles
            served.apply(Part(part.table, part.op, part.keys[:10], part.weights[:10]))
        begin = time.process_time()
        for part in Delta(folder, record).parts():
            served.apply(part)
        replay = time.process_time() - begin
    share = dump / (DUMP_STEPS * step_seconds)
    note = f"{dump:.2f} s for {changed:,} rows, {DUMP_STEPS} steps of {step_seconds * 1e3:.0f} ms"
    note += f"; marking rows {marking:.1%}"
    return [
        Bar("a dump of 1 M changed rows / the steps between two", share + marking, 0.05, False, note),
        Bar("million rows a second of a delta into served tables", changed / replay / 1e6, 1.0, True),
    ]


def bench_served(repeats: int = 5) -> list[Bar]:
    """From the moment at which changed rows are taken to answers with them, over HTTP."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        table = pa.table({"item": np.arange(16), "label": np.arange(16) % 2})
        pq.write_table(table, folder / "rows.parquet")
        (folder / "served.config").write_text(CONFIG % SERVED_ROWS)
        model, bundle = folder / "model", folder / "bundle"
        config = folder / "served.config"
        recgrad.train(config, train_input_path=str(folder / "rows.parquet"), model_dir=model)
        recgrad.export_model(model, export_dir=bundle)
        deltas = model / "delta_embedding_dump"
        seconds = _follow(bundle, deltas, repeats)
    return [
        Bar(
            "seconds from 1 M rows taken to 1 M rows served / stated bound",
            max(seconds) / BOUND_SECS,
            1.0,
            False,
            f"slowest {max(seconds):.2f} s, median {median(seconds):.2f} s, bound {BOUND_SECS:g} s",
        )
    ]


def _follow(bundle: Path, deltas: Path, repeats: int) -> list[float]:
    """Seconds until a server that follows answers with the rows of each delta."""
    command = [sys.executable, "-m", "recgrad", "serve", str(bundle), "--port", "0", "--workers", "1"]
    command += ["--follow", str(deltas)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert server.stdout is not None
        found = re.search(r"http://[0-9.]+:(\d+)", server.stdout.readline())
        assert found is not None
        url = f"http://127.0.0.1:{found.group(1)}"
        last = read_record(published(deltas)[max(published(deltas))])
        dense = Delta(deltas, last).dense()
        (record,) = read_manifest(bundle).tables
        random, seconds = np.random.default_rng(8), []
        for _ in range(repeats):
            before = _score(url)
            rows = random.normal(size=(SERVED_ROWS, record.dim)).astype(np.float32)
            begin = time.time()
            number, step, own = last.number + 1, last.step + 1, uuid.uuid4().hex
            delta = DeltaRecord(last.stream, number, last.id, step, last.step, begin, "NONE", id=own)
            nothing = np.empty(0, np.int64)
            changed = ChangedTable(
                record.name, record.dim, "item", np.arange(SERVED_ROWS), rows, nothing, None
            )
            last = write_delta(deltas, "delta_embedding", delta, [changed], dense)
            while _score(url) == before:
                time.sleep(0.01)
            seconds.append(time.time() - begin)
        return seconds
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()


def _score(url: str) -> Any:
    body = json.dumps({"rows": [{"item": 7}]}).encode()
    request = urllib.request.Request(f"{url}/v1/score", body, {"content-type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["scores"]
