"""dlrm_hstu on a synthetic log of music: samples/s, GFLOP/s, and the loop against compute alone.

    python benchmarks/music_log.py [--rows 96] [--json FILE] [--out FOLDER]

Listeners have thousands of events (lognormal, median 600, at most 4,096) and 20 to 100 candidates a row. The
loop is `recgrad train`'s: reading, encoding, lookups, updates of tables. Compute alone is the same steps over
batches that were loaded before. Both run in turns; medians. GFLOP/s count products of matrices alone (layers,
and attention over what positions see, forward and twice as much backward), against torch's product of
matrices of the layers' shape. With --out it writes the data, for examples/music_dlrm_hstu.config.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from results.bars import Bar, describe_bar, write_bars

from recgrad.config.edit import edit_config
from recgrad.config.load import load_config
from recgrad.data.batch import Batch
from recgrad.training.assembly import Training, build_training

CONFIG = Path(__file__).resolve().parents[1] / "examples" / "music_dlrm_hstu.config"
SONGS, ARTISTS, USERS = 100_000, 10_000, 10_000
LAYERS, DIM = 3, 64


def draw_rows(count: int, seed: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    found: dict[str, list[object]] = {name: [] for name in ("user_id", "country", "acts", "played")}
    found |= {f"seen__{name}": [] for name in ("song", "artist", "action", "played", "time")}
    found |= {f"shown__{name}": [] for name in ("song", "artist", "time")}
    for _ in range(count):
        n = int(np.clip(rng.lognormal(np.log(600), 1.0), 20, 4096))
        t = int(rng.integers(20, 101))
        times = 1_700_000_000 + np.sort(rng.integers(0, 90 * 86_400, n + t))
        songs = np.minimum(rng.zipf(1.2, n + t), SONGS) - 1
        liked = rng.random(n + t) < 0.2
        played = np.where(liked, 180.0, 10.0) + rng.random(n + t)
        found["user_id"].append(int(rng.integers(0, USERS)))
        found["country"].append(int(rng.integers(0, 50)))
        for part, at in (("seen", slice(0, n)), ("shown", slice(n, None))):
            found[f"{part}__song"].append(songs[at].tolist())
            found[f"{part}__artist"].append((songs[at] % ARTISTS).tolist())
            found[f"{part}__time"].append(times[at].tolist())
        found["seen__action"].append((1 + 2 * liked[:n]).tolist())
        found["seen__played"].append(played[:n].tolist())
        found["acts"].append((1 + 2 * liked[n:]).tolist())
        found["played"].append(played[n:].tolist())
    return pa.table(found)


def step(training: Training, batch: Batch) -> None:
    losses = training.task.losses(training.task(batch), batch)
    training.updater.backward(losses["total"])
    training.updater.step()


def loop_seconds(training: Training) -> float:
    begin = time.perf_counter()
    for batch in training.train_loader.epoch(0):
        step(training, batch)
    return time.perf_counter() - begin


def compute_seconds(training: Training, batches: list[Batch]) -> float:
    begin = time.perf_counter()
    for batch in batches:
        step(training, batch)
    return time.perf_counter() - begin


def products(table: pa.Table) -> float:
    """Floating-point operations of products of matrices in a step over all rows, forward and backward."""
    total = 0.0
    for seen, shown in zip(table["seen__song"].to_pylist(), table["shown__song"].to_pylist(), strict=True):
        n, t = len(seen) + 2, len(shown)
        positions = n + t
        layers = positions * DIM * (4 * DIM + 3 * DIM)  # U, V, Q, K and the output
        pairs = n * n / 2 + t * (n + 1)
        around = positions * 2 * DIM * DIM + len(seen) * 2 * DIM * DIM + t * (3 * DIM * DIM)
        total += 2 * (LAYERS * (layers + 2 * pairs * DIM) + around)
    return 3 * total


def torch_rate(seconds: float = 0.5) -> float:
    """FLOP/s of torch's product of [4096, 64] and [64, 256], as in the layers."""
    a, b = torch.randn(4096, DIM), torch.randn(DIM, 4 * DIM)
    times = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds:
        start = time.perf_counter()
        a @ b
        times.append(time.perf_counter() - start)
    return float(2 * 4096 * DIM * 4 * DIM / median(times))


def measure(count: int = 96, rounds: int = 3) -> list[Bar]:
    """Print what was found, and return the bar."""
    with tempfile.TemporaryDirectory() as folder:
        table = draw_rows(count, 0)
        pq.write_table(table, f"{folder}/train.parquet")
        edits = {"train_input_path": f"{folder}/train.parquet", "eval_input_path": "", "model_dir": folder}
        training = build_training(edit_config(load_config(CONFIG), edits))
        training.task.train()
        training.updater.start_epoch(0)
        batches = list(training.train_loader.epoch(0))
        compute_seconds(training, batches[:2])
        loops, computes, rates = [], [], []
        for _ in range(rounds):
            loops.append(loop_seconds(training))
            computes.append(compute_seconds(training, batches))
            rates.append(torch_rate())
    loop, compute = median(loops), median(computes)
    shown, seen = (sum(len(row) for row in table[name].to_pylist()) for name in ("shown__song", "seen__song"))
    flops, rate = products(table), median(rates)
    threads = torch.get_num_threads()
    print(f"dlrm_hstu, {threads} threads: {count} rows, {seen:,} events, {shown:,} candidates")
    print(f"loop: {count / loop:.1f} rows/s, {shown / loop:,.0f} samples/s, {seen / loop:,.0f} events/s")
    print(
        f"compute alone: {flops / compute / 1e9:.1f} GFLOP/s; torch's product of matrices: "
        f"{rate / 1e9:.1f} GFLOP/s"
    )
    bar = Bar("dlrm_hstu, loop against compute alone", compute / loop, 0.85, True)
    print(describe_bar(bar))
    return [bar]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--out", type=Path, help="write train.parquet and valid.parquet there, and end")
    args = parser.parse_args()
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        for name, seed in (("train", 0), ("valid", 1)):
            pq.write_table(draw_rows(args.rows, seed), args.out / f"{name}.parquet")
        return
    write_bars(args.json, measure(args.rows, args.rounds))


if __name__ == "__main__":
    main()
