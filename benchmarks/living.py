"""Tables whose rows belong to ids as they come and go, against tables that never give one up, and TorchRec's.

    python benchmarks/living.py [--json FILE] [--live N] [--kills N] [--only NAME …]

`step`: 26 tables of dim 16, batch 8192, Adagrad, 10 M live ids at capacity, 2 % of a batch new.
`torchrec`: a forward pass in training on the ids of one such table.
`rows`: every vector of 10 M events is that which a dictionary has for its id.
`drift`: click data whose ids change daily, with the settings that docs/online.md recommends for it.
`delta`: 1 M changed rows written, and taken up by served tables. `served`: from there to answers over HTTP.
`fresh`: from an optimizer step to a score that shows it, and whether what is served is an export bit for bit.
`kafka`: the loop on a topic against that on parquet files, and kills at random moments.

All but the last three run in one process on one thread, in turn, on the same ids; times are CPU time, medians
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
from online.freshness import bench_freshness
from online.rows import bench_rows
from online.subject import BATCH, DIM, TABLES, Stream, Subject, keys_of
from results.bars import Bar, describe_bar, write_bars

from recgrad.embedding.living import DISTANCE, LAST, LivingSpec
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
    for subject in subjects[1:]:
        _print_pause_of_checkpoint(subject)
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


def _print_pause_of_checkpoint(subject: Subject) -> None:
    """How long the loop stands still for a checkpoint: the rest is copied beside the steps."""
    begin = time.process_time()
    copies = [table.begin_copy() for table in subject.engine.tables.values()]
    scores = [table.begin_scores() for table in subject.engine.living_tables().values()]
    seconds = time.process_time() - begin
    print(f"    a checkpoint of {subject.name} holds up the loop for {seconds * 1e3:.0f} ms", flush=True)
    del copies, scores


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


def bench_kafka(kills: int) -> list[Bar]:
    """The loop on a topic, and a run that is killed again and again; the brokers are librdkafka's own."""
    from streams import Brokers, measure_kills, measure_loop

    from recgrad.synth import write_synth

    brokers = Brokers()
    try:
        with tempfile.TemporaryDirectory() as folder:
            write_synth(Path(folder), 60_000, eval_rows=1_000, seed=5)
            return [*measure_loop(Path(folder), brokers, 3), *measure_kills(Path(folder), brokers, kills)]
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
        "fresh": bench_freshness,
        "kafka": lambda: bench_kafka(args.kills),
    }
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--live", type=int, default=10_000_000)
    parser.add_argument("--kills", type=int, default=50)
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
