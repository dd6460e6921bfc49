"""Tables whose rows belong to ids as they come and go, against tables that never give one up, and TorchRec's.

    python benchmarks/living.py [--json FILE] [--live N] [--only NAME …]

All run in one process on one thread, in turn, on the same ids; times are CPU time, medians over steps, so
that a busy machine changes little. `step`: 26 tables of dim 16, batch 8192, Adagrad, 10 M live ids at
capacity, 2 % of a batch new.
`delta`: 1 M changed rows written, and taken up by served tables.
`rows`: every vector of 10 M events is that of its own id. `drift`: click data whose ids change daily.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from results.bars import Bar, describe_bar, write_bars

from recgrad.embedding.deltas.reading import Delta, Part
from recgrad.embedding.deltas.record import DeltaRecord
from recgrad.embedding.deltas.writing import ChangedTable, write_delta
from recgrad.embedding.living import COUNT, DISTANCE, LAST, NUM_ROWS, LivingSpec
from recgrad.embedding.local.changes import ChangeLog
from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.local.living.table import LivingTable
from recgrad.embedding.mapped.moving import MovingTables
from recgrad.embedding.mapped.writing import write_table
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.optim.sparse import SPARSE_OPTIMIZERS
from recgrad.training.runtime import keep_freed_memory

TABLES, BATCH, DIM = 26, 8192, 16
DUMP_STEPS = 1000  # between two deltas, as the config has it by default
FAR = 0x1F3D5B79ABCDEF01  # ids lie far apart
Array = Any


def keys_of(numbers: Array) -> Array:
    """Ids of 63 bits, one for each number."""
    return (numbers.astype(np.uint64) * np.uint64(FAR)) % np.uint64(NUM_ROWS - 1)


class Subject:
    """An engine of equal tables with its optimizer, and the time of its steps."""

    def __init__(
        self,
        name: str,
        living: LivingSpec | None,
        rows: int,
        tables: int = TABLES,
        dim: int = DIM,
        init_fn: str | None = None,
    ) -> None:
        storage, height = ("AUTO", NUM_ROWS) if living else ("COMPACT", rows)
        specs = [
            TableSpec(f"t{i}", height, dim, init_fn, storage=storage, living=living) for i in range(tables)
        ]
        keys = [f"f{i}" for i in range(tables)]
        lookups = [LookupSpec(key, key, spec.name) for key, spec in zip(keys, specs, strict=True)]
        self.name, self.living, self.keys = name, living, keys
        self.engine = LocalEngine(specs, lookups, keys=keys)
        self.optimizer = SPARSE_OPTIMIZERS["adagrad_optimizer"](self.engine, lr=0.05)
        self.seconds: list[float] = []

    def step(self, numbers: Array, gradient: torch.Tensor) -> None:
        """Lookup, backward and update."""
        ids = self.ids(numbers)
        begin = time.process_time()
        self.engine(ids).pooled(self.keys).backward(gradient)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.seconds.append(time.process_time() - begin)

    def look_up(self, numbers: Array) -> float:
        """CPU time of a lookup in evaluation."""
        ids = self.ids(numbers)
        self.engine.eval()
        begin = time.process_time()
        with torch.no_grad():
            self.engine(ids).pooled(self.keys)
        seconds = time.process_time() - begin
        self.engine.train()
        return seconds

    def ids(self, numbers: Array) -> Ids:
        """Ids [rows, tables], a feature after another."""
        flat = np.ascontiguousarray(numbers.T).reshape(-1)
        values = keys_of(flat).astype(np.int64) if self.living else flat
        bags = numbers.shape[0]
        ones = torch.ones(len(flat), dtype=torch.int32)
        return Ids(torch.from_numpy(values), ones, [bags] * numbers.shape[1], None, True)


def bench_step(live: int, steps: int = 100) -> list[Bar]:
    """Steps at capacity with eviction, lookups of known ids, memory and pauses."""
    random = np.random.default_rng(0)
    capacity = live // TABLES
    subjects = [
        Subject("COMPACT", None, 1 << 30),
        Subject("dynamicemb STEP", LivingSpec(capacity, LAST), 0),
        Subject("zch distance_lfu", LivingSpec(capacity, DISTANCE, interval=5, fallback=True), 0),
    ]
    gradient = torch.randn(BATCH, TABLES * DIM) * 0.01
    next_id, first = 0, 0
    while next_id < capacity:  # fill
        numbers = np.repeat((next_id + np.arange(BATCH) % capacity)[:, None], TABLES, axis=1)
        for subject in subjects:
            subject.step(numbers, gradient)
        next_id += BATCH
    fill = {subject.name: list(subject.seconds) for subject in subjects}
    for subject in subjects:
        subject.seconds.clear()
    for _ in range(steps):
        numbers = random.integers(first, next_id, (BATCH, TABLES))
        fresh = random.random((BATCH, TABLES)) < 0.02
        count = BATCH // 50
        numbers[fresh] = next_id + random.integers(0, count, int(fresh.sum()))
        next_id, first = next_id + count, first + count
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
    known = np.flatnonzero(np.isin(keys_of(np.arange(next_id)).astype(np.int64), keys))
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


def auc(scores: Array, labels: Array) -> float:
    """The share of pairs in the right order."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores, kind="stable")] = np.arange(1, len(scores) + 1)
    positives = labels.sum()
    return float(
        (ranks[labels].sum() - positives * (positives + 1) / 2) / (positives * (len(labels) - positives))
    )


class Drift:
    """Clicks on ids, of which some are new each day and as many are gone: logit = the sum of two effects."""

    days, active, fresh, batch, batches = 20, 20_000, 8_000, 4096, 24

    def __init__(self) -> None:
        self.total = self.active + (self.days - 1) * self.fresh
        self.random = np.random.default_rng(3)
        self.effects = self.random.normal(0, 1.2, (self.total, 2))

    def rows(self, day: int, count: int) -> tuple[Array, Array]:
        """Ids [count, 2] of a day and their labels."""
        share = self.random.random((count, 2)) ** 2  # some are much more frequent
        own = (
            (np.random.default_rng(day).permutation(self.active)[(share * self.active).astype(int)])
            + day * self.fresh
        )
        logits = self.effects[own[:, 0], 0] + self.effects[own[:, 1], 1]
        return own, self.random.random(count) < 1 / (1 + np.exp(-logits))

    def run(self, subjects: Sequence[tuple[Subject, int]]) -> dict[str, float]:
        """Mean AUC over the last days on rows of the day, after it was trained on; ids hashed where asked."""
        found: dict[str, list[float]] = {subject.name: [] for subject, _ in subjects}
        for day in range(self.days):
            train = [self.rows(day, self.batch) for _ in range(self.batches)]
            test, labels = self.rows(day, 40_000)
            for subject, buckets in subjects:
                for ids, clicks in train:
                    out = subject.engine(subject.ids(_hashed(ids, buckets))).pooled(subject.keys).sum(dim=1)
                    loss = torch.nn.functional.binary_cross_entropy_with_logits
                    loss(out, torch.from_numpy(clicks).float(), reduction="sum").backward()
                    subject.optimizer.step()
                    subject.optimizer.zero_grad()
                subject.engine.eval()
                with torch.no_grad():
                    scores = (
                        subject.engine(subject.ids(_hashed(test, buckets))).pooled(subject.keys).sum(dim=1)
                    )
                subject.engine.train()
                found[subject.name].append(auc(scores.numpy(), labels))
        return {name: float(np.mean(values[-6:])) for name, values in found.items()}


def _hashed(ids: Array, buckets: int) -> Array:
    return (keys_of(ids) % np.uint64(buckets)).astype(np.int64) if buckets else ids


def bench_drift() -> list[Bar]:
    """AUC with room for 30 % of all ids ever seen, against room for all and against hashing into as many."""
    drift = Drift()
    small, all_ids, init_fn = int(0.3 * drift.total), drift.total, "zeros_"
    kinds: dict[str, dict[str, Any]] = {
        "dynamicemb STEP": {"policy": LAST},
        "dynamicemb LFU": {"policy": COUNT},
        "zch lru": {"policy": LAST, "interval": 5, "fallback": True},
        "zch distance_lfu": {"policy": DISTANCE, "interval": 5, "fallback": True},
        "zch distance_lfu, exponent 2": {"policy": DISTANCE, "interval": 5, "fallback": True, "decay": 2.0},
        "zch distance_lfu, exponent 2, interval 1": {"policy": DISTANCE, "fallback": True, "decay": 2.0},
    }
    subjects = [(Subject("hashed", None, small, tables=2, dim=1, init_fn=init_fn), 0)]
    for name, settings in kinds.items():
        for room, capacity in (("", small), (" with room for all", all_ids)):
            spec = LivingSpec(capacity, init_fn=init_fn, **settings)
            subjects.append((Subject(name + room, spec, 0, tables=2, dim=1), 0))
    found = drift.run([(subject, small if subject.name == "hashed" else 0) for subject, _ in subjects])
    bars = []
    for name in kinds:
        own, whole, hashed = found[name], found[f"{name} with room for all"], found["hashed"]
        note = f"{own:.4f}, with room for all {whole:.4f}"
        bars.append(Bar(f"AUC lost by {name}, room for 30 % of ids", whole - own, 0.002, False, note))
        bars.append(Bar(f"AUC won by {name} over hashing", own - hashed, 0.0, True, f"hashed {hashed:.4f}"))
    return bars


def bench_torchrec(steps: int = 40) -> list[Bar]:
    """A forward pass in training of one table at capacity, ids to rows to vectors, on both sides."""
    try:
        from torchrec.modules.mc_modules import DistanceLFU_EvictionPolicy, MCHManagedCollisionModule
        from torchrec.sparse.jagged_tensor import JaggedTensor
    except (ImportError, OSError) as error:
        print(f"    torchrec is not here ({error}): left out")
        return []
    random = np.random.default_rng(4)
    size, ids = 385_000, 8192
    spec = LivingSpec(size - 1, DISTANCE, interval=5, fallback=True)
    subject = Subject("zch", spec, 0, tables=1)
    peer = MCHManagedCollisionModule(
        zch_size=size,
        device=torch.device("cpu"),
        eviction_policy=DistanceLFU_EvictionPolicy(decay_exponent=1.0),
        eviction_interval=5,
        input_hash_size=2**62,
    )
    peer.train()
    weights = torch.nn.Embedding(size, DIM)
    own: list[float] = []
    theirs: list[float] = []
    for step in range(steps + 50):
        first = 8192 * step
        numbers = (
            random.integers(max(first - size, 0), first + ids, (ids, 1))
            if step >= 50
            else first + np.arange(ids)[:, None]
        )
        features = {
            "f": JaggedTensor(subject.ids(numbers).values, lengths=torch.ones(ids, dtype=torch.int64))
        }
        begin = time.process_time()
        subject.engine(subject.ids(numbers)).pooled(subject.keys)
        middle = time.process_time()
        weights(peer.remap(peer.profile(features))["f"].values())
        end = time.process_time()
        if step >= 50:
            own.append(middle - begin)
            theirs.append(end - middle)
    ratio = sum(theirs) / sum(own)
    return [
        Bar("TorchRec's managed collision / a zch pass", ratio, 5.0, True, f"{sum(own) / steps * 1e3:.2f} ms")
    ]


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
    marking = max(median(tracked.seconds) / step_seconds - 1, 0.0)
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


def main() -> None:
    """Run the benchmarks and print their bars."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--live", type=int, default=10_000_000)
    parser.add_argument("--only", nargs="*", default=["step", "rows", "drift", "torchrec", "delta"])
    args = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    runs = {
        "step": lambda: bench_step(args.live),
        "rows": bench_rows,
        "drift": bench_drift,
        "torchrec": bench_torchrec,
        "delta": bench_delta,
    }
    bars = []
    for name, run in runs.items():
        if name in args.only:
            for bar in run():
                print(describe_bar(bar), flush=True)
                bars.append(bar)
    write_bars(args.json, bars)


if __name__ == "__main__":
    main()
