"""Scoring and serving an exported model, against onnxruntime alone and against the server a user would write.

    python benchmarks/serving.py [--json FILE] [--only NAME …] [--model FOLDER] [--overload_seconds N]

The model is DeepFM in the Criteo shape (13 numbers, 26 ids, dim 16, deep 512-256-128, final 64), trained
for a few steps on synthetic clicks and exported; INT8 and FP16 are compared on KuaiRand and census.

request    1 user × 200 candidates on one core, over what onnxruntime alone needs for the dense part
http       requests/s and p99 through HTTP, over FastAPI + uvicorn + torch with the same model
overload   more requests than can be served, while the bundle is replaced ten times: failed requests
load       a bundle with 10 million trained rows: seconds over those of `import torch`, and memory
predict    rows/s of `recgrad predict` over those of training
precision  bytes and AUC of FP16 and INT8 tables

Scores are compared first. Server and load have a core each.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from peers.load import Load, cores, load, median_load
from peers.servers import get, peer_server, post, recgrad_server
from results.bars import Bar, describe_bar, write_bars
from train import criteo_config

import recgrad
from recgrad.config import load_config, save_config
from recgrad.embedding.mapped.writing import write_table
from recgrad.embedding.spec import TableSpec
from recgrad.export.bundle import export_model
from recgrad.serving.manifest import GOLDEN_SCORES, MANIFEST, read_manifest
from recgrad.serving.scorer import Scorer
from recgrad.serving.verify import checksum_of
from recgrad.synth import write_synth

HERE = Path(__file__).resolve().parent
DATA = HERE.parent / "../shared/data"
SYNTH_ROWS = 250_000
STEPS = 40
LARGE_ID = 100_000_000  # rows that the first table has room for
SWAPS = 10
MOST_ROWS = 2048  # that a server scores together
ROUNDS = 3  # of each cell of the HTTP grid, in turn with the peer


def command(*words: str | Path, cwd: Path | None = None) -> float:
    """Run `recgrad …`; returns its seconds."""
    start = time.perf_counter()
    line = [sys.executable, "-m", "recgrad", *map(str, words)]
    done = subprocess.run(line, capture_output=True, text=True, cwd=cwd)
    if done.returncode:
        raise RuntimeError(f"{' '.join(line)}:\n{done.stderr}")
    return time.perf_counter() - start


class Model:
    """The trained model in its folder, with its bundle; made unless it is there."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self.scratch = scratch
        self.folder, self.model_dir, self.bundle = folder, folder / "model", folder / "bundle"
        self.rows = folder / "eval.parquet"
        if not self.bundle.exists():
            folder.mkdir(exist_ok=True)
            self._make(folder)

    def _make(self, folder: Path) -> None:
        write_synth(folder, SYNTH_ROWS)
        config = criteo_config(folder)
        config.train_config.num_steps = STEPS
        config.train_config.ClearField("num_epochs")
        config.model_dir = str(self.model_dir)
        for feature in config.feature_configs:
            if feature.id_feature.feature_name == "cat_0":
                feature.id_feature.num_buckets = LARGE_ID
        save_config(config, folder / "run.config")
        command("train", folder / "run.config")
        command("export", folder / "run.config", "--export_dir", self.bundle)

    def bodies(self, count: int) -> bytes:
        scorer_columns = read_rows(self.bundle, self.rows).slice(0, count)
        return json.dumps({"rows": scorer_columns.to_pylist()}).encode()


def read_rows(bundle: Path, file: Path) -> pa.Table:
    return pq.read_table(file, columns=Scorer.load(bundle, verify=False).schema.names)


def request_bars(model: Model) -> list[Bar]:
    line = [sys.executable, str(HERE / "peers/one_request.py"), str(model.bundle), str(model.rows)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(line, capture_output=True, text=True, check=True, env=environment)
    found = json.loads(done.stdout)
    what = "1 user × 200 candidates, one core:"
    note = f"{found['p50'] * 1e3:.2f} ms against {found['alone'] * 1e3:.2f} ms"
    return [
        Bar(f"{what} time over onnxruntime alone", found["p50"] / found["alone"], 1.5, False, note),
        Bar(f"{what} p99 over p50", found["p99"] / found["p50"], 3, False, f"{found['p99'] * 1e3:.2f} ms"),
    ]


def http_bars(model: Model, seconds: float) -> list[Bar]:
    own, other = cores()[0], cores()[-1]
    grid = [(rows, clients) for rows in (1, 20, 200) for clients in (1, 8, 64)]
    bodies = {rows: model.bodies(rows) for rows in (1, 20, 200)}
    found = {}
    line = [sys.executable, HERE / "peers/plain_state.py", model.bundle, model.model_dir]
    subprocess.run([*map(str, line), str(model.scratch / "peer.pt")], check=True)
    together = {(rows, clients): rows * min(clients, MOST_ROWS // rows) for rows, clients in grid}
    alone = dense_alone(model, sorted(set(together.values())))
    with (
        peer_server(model.scratch / "peer.pt", own) as theirs,
        recgrad_server(model.bundle, own) as ours,
    ):
        urls = {"ours": f"{ours}/v1/score", "theirs": f"{theirs}/v1/score"}
        for body in bodies.values():
            scores = post(urls["ours"], body)["scores"]["probs"], post(urls["theirs"], body)["probs"]
            np.testing.assert_allclose(*scores, rtol=0, atol=1e-6)
        for rows, clients in grid:
            taken: dict[str, list[Load]] = {name: [] for name in urls}
            for _ in range(ROUNDS):
                for name, url in urls.items():
                    taken[name].append(load(url, bodies[rows], clients, seconds, other))
            found |= {(rows, clients, name): median_load(loads) for name, loads in taken.items()}
        empty = {clients: load(f"{ours}/healthz", b"", clients, seconds, other) for clients in (1, 8, 64)}
    bars = []
    for rows, clients in grid:
        a, b = found[rows, clients, "ours"], found[rows, clients, "theirs"]
        what = f"HTTP, {rows} row{'s' * (rows > 1)} a request, {clients} client{'s' * (clients > 1)}:"
        note = f"{a.per_second:,.0f} against {b.per_second:,.0f}"
        # What cannot be left out: an exchange of nothing, and the dense part of rows that come together.
        batch = together[rows, clients]
        exchange, dense = 1 / empty[clients].per_second, alone[batch] * rows / batch
        most = 1 / (exchange + dense) / max(b.per_second, 1 / seconds)
        note += f"; at most {most:.1f}, as an exchange of nothing ({exchange * 1e3:.2f} ms)"
        note += f" and the dense part ({dense * 1e3:.2f} ms) take time"
        theirs_per_second = max(b.per_second, 1 / seconds)  # as if its first answer came just in time
        bars.append(Bar(f"{what} requests/s over FastAPI's", a.per_second / theirs_per_second, 4, True, note))
        note = f"{a.p99 * 1e3:.1f} ms against {b.p99 * 1e3:.1f} ms"
        theirs_p99 = b.p99 if b.per_second else seconds
        bars.append(Bar(f"{what} p99 over FastAPI's", a.p99 / theirs_p99, 1, False, note))
    failed = sum(one.failed for one in found.values())
    assert not failed, f"{failed} requests failed"
    return bars


def dense_alone(model: Model, sizes: Sequence[int]) -> dict[int, float]:
    """Seconds of the dense program that the server runs, for so many rows, on one thread."""
    scorer = Scorer.load(model.bundle, verify=False)
    found = {}
    runs = scorer._parts["score"].folding or scorer._parts["score"]
    table = read_rows(model.bundle, model.rows)
    feeds: dict[str, np.ndarray] = {}
    program, runs.program = runs.program, lambda given: feeds.update(given) or program(given)
    for size in sizes:
        scorer.score(table.slice(0, size).combine_chunks())
        taken = []
        for _ in range(max(20, 4000 // size)):
            start = time.perf_counter()
            program(feeds)
            taken.append(time.perf_counter() - start)
        found[size] = statistics.median(taken)
    return found


def overload_bars(model: Model, seconds: float) -> list[Bar]:
    """64 clients with 200 rows each, a short queue, and a new bundle behind a link every few seconds."""
    link = model.scratch / "served"
    link.symlink_to(model.bundle)
    body = model.bodies(200)
    with recgrad_server(link, None, "--max_queue", "32", "--poll_s", "0.2") as url:
        swapper = threading.Thread(target=_swap, args=(model, link, seconds))
        swapper.start()
        found = load(f"{url}/v1/score", body, 64, seconds)
        swapper.join()
        for _ in range(100):
            swaps = int(float(re.findall(r"^recgrad_swaps_total\S* (\S+)", get(f"{url}/metrics"), re.M)[0]))
            if swaps >= SWAPS:
                break
            time.sleep(0.2)
    note = f"{found.requests:,} requests, {found.full:,} answered 429, in {seconds:g} s"
    return [
        Bar("overload while bundles are replaced: failed requests", found.failed, 0, False, note),
        Bar("overload while bundles are replaced: swaps", swaps, SWAPS, True),
    ]


def _swap(model: Model, link: Path, seconds: float) -> None:
    for number in range(SWAPS):
        time.sleep(seconds / (SWAPS + 1))
        copy, new = model.scratch / f"bundle.{number}", model.scratch / "served.new"
        shutil.copytree(model.bundle, copy)
        new.symlink_to(copy)
        os.replace(new, link)


def load_bars(model: Model, rows: int) -> list[Bar]:
    large = enlarge(model, rows)
    size = sum(file.stat().st_size for file in large.rglob("*") if file.is_file())
    times, torch_times, found = [], [], {}
    for _ in range(3):
        line = [sys.executable, str(HERE / "peers/loading.py"), str(large), str(model.rows)]
        found = json.loads(subprocess.run(line, capture_output=True, text=True, check=True).stdout)
        times.append(found["seconds"])
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", "import torch"], check=True)
        torch_times.append(time.perf_counter() - start)
    ours, torch = statistics.median(times), statistics.median(torch_times)
    note = f"{ours:.2f} s against {torch:.2f} s, {size / 1e6:,.0f} MB in files"
    loaded, read = found["load_bytes"], found["read_bytes"]
    pages = 2 * 4096 * 1000  # that of a row, and that of its place in the index
    return [
        Bar(f"loading {rows:,} rows: time over `import torch`", ours / torch, 1, False, note),
        Bar(
            "memory after loading, over the bundle's bytes",
            loaded / size,
            0.25,
            False,
            f"{loaded / 1e6:.0f} MB",
        ),
        Bar(
            "memory for 1,000 rows read, over two pages each",
            read / pages,
            1.5,
            False,
            f"{read / 1e6:.1f} MB",
        ),
    ]


def enlarge(model: Model, count: int) -> Path:
    """The bundle with `count` trained rows in its first table."""
    large = model.scratch / "large"
    shutil.copytree(model.bundle, large)
    manifest = read_manifest(large)
    old = next(table for table in manifest.tables if table.num_rows == LARGE_ID and table.dim == 16)
    spec = TableSpec(old.name, LARGE_ID, old.dim)
    (large / old.rows_file).unlink()
    (large / old.index_file).unlink()
    stem = old.rows_file.removesuffix(".rows")
    new = write_table(large, stem, spec, count, _pieces(count, old.dim), precision="FP32", seed=0)
    tables = tuple(new if table is old else table for table in manifest.tables)

    def write(manifest_tables: tuple[object, ...]) -> None:
        files = {name: checksum_of(large / name) for name in manifest.files}
        same = {name: dict(getattr(manifest, name)) for name in ("versions", "metrics", "programs")}
        (large / MANIFEST).write_bytes(
            replace(manifest, tables=manifest_tables, files=files, **same).to_bytes()
        )

    write(tables)
    scorer = Scorer.load(large, verify=False, golden=False)
    scores = pa.table(scorer.score(scorer.golden))
    with pa.OSFile(str(large / GOLDEN_SCORES), "wb") as sink, pa.ipc.new_file(sink, scores.schema) as writer:
        writer.write_table(scores)
    write(tables)
    return large


def _pieces(count: int, dim: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    for first in range(0, count, 1 << 20):
        rows = np.arange(first, min(first + (1 << 20), count))
        yield rows, rng.standard_normal((len(rows), dim), np.float32)


def predict_bars(model: Model) -> list[Bar]:
    events = [json.loads(line) for line in (model.model_dir / "events.jsonl").read_text().splitlines()]
    trained = [event["samples_per_sec"] for event in events if "samples_per_sec" in event]
    training = statistics.median(trained)
    rows = pq.read_table(model.folder / "train.parquet")
    files = {times: model.scratch / f"rows_{times}.parquet" for times in (1, 3)}
    for times, file in files.items():
        pq.write_table(pa.concat_tables([rows] * times), file)
    bars = []
    for nproc in (1, len(cores())):
        seconds = {}
        for times, file in files.items():
            out = model.scratch / f"scores_{nproc}_{times}.parquet"
            paths = ("--predict_input_path", file, "--predict_output_path", out)
            seconds[times] = command("predict", model.bundle, *paths, "--nproc", str(nproc))
        speed = 2 * rows.num_rows / (seconds[3] - seconds[1])  # without the start
        what = "one process" if nproc == 1 else f"--nproc {nproc}"
        note = f"{speed:,.0f} against {training:,.0f} rows/s"
        name = f"predict over a file, {what}: rows/s over those of training"
        bars.append(Bar(name, speed / training, 2.5, True, note))
    return bars


def precision_bars(folder: Path) -> list[Bar]:
    bars = []
    for name, label, file, positive in (
        ("kuairand", "is_click", DATA / "kuairand/test.parquet", None),
        ("census", "income_50k", DATA / "census_income/census-income.test.gz", "50000+."),
    ):
        if file.exists():
            bars += _precisions(folder / name, name, label, file, positive)
    return bars


def _precisions(folder: Path, name: str, label: str, file: Path, positive: str | None) -> list[Bar]:
    folder.mkdir()
    config = load_config(HERE.parent / f"examples/{name}_deepfm.config")
    config.model_dir = str(folder / "model")
    for field in ("train_input_path", "eval_input_path"):
        setattr(config, field, str((HERE.parent / getattr(config, field)).resolve()))
    config.train_config.ClearField("num_epochs")
    config.train_config.num_steps = 400
    save_config(config, folder / "run.config")
    command("train", folder / "run.config", cwd=HERE.parent)
    aucs, sizes = {}, {}
    for precision in ("FP32", "FP16", "INT8"):
        bundle, out = folder / precision, folder / f"{precision}.parquet"
        export_model(folder / "run.config", bundle, precision=precision)
        recgrad.predict(str(bundle), input_path=str(file.resolve()), output_path=out, carry_columns=[label])
        table = pq.read_table(out)
        labels = (
            table[label].to_numpy()
            if positive is None
            else np.array([str(value).strip() == positive for value in table[label].to_pylist()])
        )
        aucs[precision] = auc(labels > 0, table["probs"].to_numpy())
        records = read_manifest(bundle).tables
        sizes[precision] = sum(
            one.stored_rows * (bundle / one.rows_file).stat().st_size / max(one.stored_rows, 1)
            for one in records
        )
        scales = sum(2 * one.stored_rows for one in records)
    bars = [
        Bar(
            f"{name}: {p} tables, AUC away from FP32's",
            abs(aucs[p] - aucs["FP32"]),
            goal,
            False,
            f"AUC {aucs[p]:.6f}",
        )
        for p, goal in (("FP16", 0.0001), ("INT8", 0.0005))
    ]
    share = (sizes["INT8"] - scales) / sizes["FP32"]
    return [*bars, Bar(f"{name}: INT8 bytes without scales, over FP32's", share, 0.26, False)]


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """The share of pairs in order, ties counted half."""
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positive = labels.sum()
    return float(
        (ranks[labels].sum() - positive * (positive + 1) / 2) / (positive * (len(labels) - positive))
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these parts alone")
    parser.add_argument("--http_seconds", type=float, default=1, help=f"of each of {ROUNDS} rounds")
    parser.add_argument("--overload_seconds", type=float, default=20, help="60 for the whole minute")
    parser.add_argument("--large_rows", type=int, default=10_000_000)
    parser.add_argument("--model", type=Path, help="a folder to keep the trained model in, for the next run")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = None if args.only == ["precision"] else Model(args.model or folder, folder)
        parts = {
            "request": lambda: request_bars(model),
            "http": lambda: http_bars(model, args.http_seconds),
            "overload": lambda: overload_bars(model, args.overload_seconds),
            "load": lambda: load_bars(model, args.large_rows),
            "predict": lambda: predict_bars(model),
            "precision": lambda: precision_bars(folder),
        }
        unknown = [part for part in args.only or () if part not in parts]
        if unknown:
            parser.error(f"no part '{unknown[0]}' (has: {', '.join(parts)})")
        bars: list[Bar] = []
        for part in args.only or parts:
            found = parts[part]()
            print("\n".join(map(describe_bar, found)), flush=True)
            bars += found
    write_bars(args.json, bars)
    return 0


if __name__ == "__main__":
    sys.exit(main())
