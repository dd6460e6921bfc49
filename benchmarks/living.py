"""Tables whose rows belong to ids as they come and go, against tables that never give one up, and TorchRec's.

    python benchmarks/living.py [--json FILE] [--live N] [--only NAME …]

`step`: 26 tables of dim 16, batch 8192, Adagrad, 10 M live ids at capacity, 2 % of a batch new.
`torchrec`: a forward pass in training on the ids of one such table.
`rows`: every vector of 10 M events is that of its own id. `drift`: click data whose ids change daily.
`delta`: 1 M changed rows written, and taken up by served tables. `served`: from there to answers over HTTP.
`kafka`: the loop on a topic against that on parquet files, and kills (benchmarks/streams.py has more of it).

All but the last two run in one process on one thread, in turn, on the same ids; times are CPU time, medians
over steps, so that a busy machine changes little.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from online.deltas import bench_delta, bench_served
from online.drift import bench_drift
from online.subject import BATCH, DIM, TABLES, Stream, Subject, keys_of
from results.bars import Bar, describe_bar, write_bars

from recgrad.embedding.living import COUNT, DISTANCE, LAST, LivingSpec
from recgrad.embedding.local.living.table import LivingTable
from recgrad.training.runtime import keep_freed_memory

Array = Any


def bench_step(live: int, steps: int = 100) -> list[Bar]:
    """Steps at capacity with eviction, lookups of known ids, memory and pauses."""
    random = np.random.default_rng(1)
    capacity = live // TABLES
    stream = Stream(capacity)
    subjects = [
        Subject("COMPACT", None, 1 << 30),
        Subject("dynamicemb STEP", LivingSpec(capacity, LAST), 0),
        Subject("zch distance_lfu", LivingSpec(capacity, DISTANCE, interval=5, fallback=True), 0),
    ]
    gradient = torch.randn(BATCH, TABLES * DIM) * 0.01
    for numbers in stream.fill():
        for subject in subjects:
            subject.step(numbers, gradient)
    fill = {subject.name: list(subject.seconds) for subject in subjects}
    # A zch id is admitted after it was seen: seen once more, its row is written, as those of the others are.
    for numbers in stream.known():
        for subject in subjects:
            subject.step(numbers, gradient)
    for subject in subjects:
        subject.seconds.clear()
    for _ in range(steps):
        numbers = stream.batch()
        for subject in subjects:
            subject.step(numbers, gradient)
    bars = []
    base = median(subjects[0].seconds)
    for subject in subjects[1:]:
        ratio = median(subject.seconds) / base
        mean = sum(subject.seconds) / sum(subjects[0].seconds)
        bars.append(Bar(f"step of {subject.name} / COMPACT", ratio, 1.5, False, f"{base * 1e3:.0f} ms"))
        bars.append(Bar(f"mean step of {subject.name} / COMPACT", mean, 1.5, False))
        usual = max(base, median(subject.seconds))
        bars.append(
            Bar(f"longest step of {subject.name} at capacity", max(subject.seconds[1:]) / usual, 3.0, False)
        )
        own = fill[subject.name][3:-1]
        usual = max(median(fill["COMPACT"][3:-1]), median(own))
        bars.append(Bar(f"longest step of {subject.name} while it grows", max(own) / usual, 3.0, False))
    table = subjects[1].engine.tables["t0"]
    assert isinstance(table, LivingTable)
    keys = table.live()[0]
    known = np.flatnonzero(np.isin(keys_of(np.arange(stream.next_id)).astype(np.int64), keys))
    asked = [known[random.integers(0, len(known), (BATCH, TABLES))] for _ in range(15)]
    times = {s.name: [s.look_up(numbers) for numbers in asked] for s in subjects}
    ratio = median(times[subjects[1].name]) / median(times["COMPACT"])
    bars.append(Bar("lookup of known ids / COMPACT", ratio, 1.15, False))
    for subject in subjects[1:]:
        memory = subject.engine.memory()
        each = sum(m.total_bytes for m in memory) / sum(m.rows for m in memory)
        allowed = DIM * 8 + 16
        bars.append(
            Bar(
                f"memory per live row of {subject.name} / (weights + states + 16 bytes)",
                each / allowed,
                1.3,
                False,
            )
        )
    return bars


def bench_rows(events: int = 10_000_000) -> list[Bar]:
    """Whether each of many vectors is that of its own id: drawn by id, and a rate of 0 keeps them so."""
    random = np.random.default_rng(1)
    batch, init_fn = 50_000, "uniform_,a=-1,b=1"
    subject = Subject("rows", LivingSpec(200_000, COUNT, init_fn=init_fn), 0, tables=1, dim=4)
    subject.optimizer.param_groups[0]["lr"] = 0.0
    every = Subject("all", LivingSpec(6_000_000, COUNT, init_fn=init_fn), 0, tables=1, dim=4).engine.tables[
        "t0"
    ]
    gradient, wrong = torch.ones(batch, 4), 0
    for step in range(events // batch):
        numbers = random.zipf(1.1, (batch, 1)) % 1_000_000 + 20_000 * step
        out = subject.engine(subject.ids(numbers)).pooled(subject.keys)
        expected = every.initial(keys_of(numbers[:, 0]).astype(np.int64))
        wrong += int((out.detach().numpy() != expected).any(axis=1).sum())
        out.backward(gradient)
        subject.optimizer.step()
        subject.optimizer.zero_grad()
    evicted = subject.engine.living_tables()["t0"].turnover().evicted
    return [Bar(f"wrong rows in {events:,} events", wrong, 0, False, f"{evicted:,} evicted")]


def bench_torchrec(steps: int = 60) -> list[Bar]:
    """A forward pass in training of one table at capacity, ids to rows to vectors, on both sides."""
    try:
        from torchrec.modules.mc_modules import DistanceLFU_EvictionPolicy, MCHManagedCollisionModule
        from torchrec.sparse.jagged_tensor import JaggedTensor
    except (ImportError, OSError) as error:
        print(f"    torchrec is not here ({error}): left out")
        return []
    size = 10_000_000 // TABLES
    subject = Subject("zch", LivingSpec(size - 1, DISTANCE, interval=5, fallback=True), 0, tables=1)
    peer = MCHManagedCollisionModule(
        zch_size=size,
        device=torch.device("cpu"),
        eviction_policy=DistanceLFU_EvictionPolicy(decay_exponent=1.0),
        eviction_interval=5,
        input_hash_size=2**62,
    )
    peer.train()
    weights = torch.nn.Embedding(size, DIM)
    stream, one = Stream(size - 1), torch.ones(BATCH, dtype=torch.int64)
    gradient = torch.randn(BATCH, DIM) * 0.01

    def both(numbers: Array) -> tuple[float, float]:
        """CPU seconds of ours, and of theirs."""
        ids = subject.ids(numbers)
        features = {"f": JaggedTensor(ids.values, lengths=one)}
        begin = time.process_time()
        out = subject.engine(ids).pooled(subject.keys)
        middle = time.process_time()
        weights(peer.remap(peer.profile(features))["f"].values())
        end = time.process_time()
        out.backward(gradient)  # rows that were never updated would be drawn at each lookup
        subject.optimizer.step()
        subject.optimizer.zero_grad()
        return middle - begin, end - middle

    for numbers in [*stream.fill(tables=1), *stream.known(tables=1)]:
        both(numbers)
    found = np.array([both(stream.batch(tables=1)) for _ in range(steps + 10)])[10:].sum(axis=0)
    note = f"{found[0] / steps * 1e3:.2f} ms, {found[1] / steps * 1e3:.2f} ms"
    return [Bar("TorchRec's managed collision / a zch pass", found[1] / found[0], 5.0, True, note)]


def bench_kafka() -> list[Bar]:
    """The loop on a topic, and a run that is killed five times; the brokers are librdkafka's own."""
    from streams import Brokers, measure_kills, measure_loop

    from recgrad.synth import write_synth

    brokers = Brokers()
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_synth(Path(folder), 60_000, eval_rows=1_000, seed=5)
            return [*measure_loop(Path(folder), brokers, 3), *measure_kills(Path(folder), brokers, 5)]
    finally:
        brokers.close()


def main() -> None:
    """Run the benchmarks and print their bars."""
    runs = {
        "step": lambda: bench_step(args.live),
        "torchrec": bench_torchrec,
        "rows": bench_rows,
        "drift": bench_drift,
        "delta": bench_delta,
        "served": bench_served,
        "kafka": bench_kafka,
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--live", type=int, default=10_000_000)
    parser.add_argument("--only", nargs="*", choices=list(runs), default=list(runs))
    args = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    bars = []
    for name, run in runs.items():
        if name in args.only:
            begin = time.monotonic()
            for bar in run():
                print(describe_bar(bar), flush=True)
                bars.append(bar)
            print(f"    {name}: {time.monotonic() - begin:.0f} s", flush=True)
    write_bars(args.json, bars)


if __name__ == "__main__":
    main()
