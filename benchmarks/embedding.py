"""One training step of embedding tables (lookup, backward, update): Recgrad, FBGEMM and torch side by side.

    python benchmarks/embedding.py [--json FILE] [--only NAME …] [--rounds N] [--cpu-time]

All run in one process, in turn, on the same ids and the same allocator settings; times are
medians, and each result is checked before it is timed. Each takes three steps at a time, of which the first
is not timed: the caches then hold what its own step before has left there, as in training, where no other
engine has run in between. "Rows" counts the rows of all tables together. FBGEMM checks ids as the engine
does, and is given the better of one and two threads.
With --cpu-time everything runs on one thread and its CPU time is compared, for machines that are
busy with other things; the engine's gain from a second thread is then not counted.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from results.bars import Bar, describe_bar, write_bars
from torch import Tensor

from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.optim.sparse import SPARSE_OPTIMIZERS, Adam
from recgrad.training.runtime import ask_for_huge_pages, keep_freed_memory

TABLES, BATCH, LR, EPS = 26, 8192, 0.05, 1e-8
IN_A_ROW = 3  # steps of an engine before the next one's turn
Step = Callable[[int], Any]


@dataclass
class Workload:
    """Ids and output gradients of a few batches."""

    rows: int  # of each table
    dim: int
    bag: int = 1
    batches: int = 6
    values: list[Tensor] = field(init=False)
    lengths: Tensor = field(init=False)
    offsets: Tensor = field(init=False)
    gradients: list[Tensor] = field(init=False)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        count = TABLES * BATCH * self.bag
        self.values = [
            torch.randint(0, self.rows, (count,), generator=generator) for _ in range(self.batches)
        ]
        self.lengths = torch.full((TABLES * BATCH,), self.bag, dtype=torch.int32)
        self.offsets = torch.arange(0, count + 1, self.bag)
        shape = (BATCH, TABLES * self.dim)
        self.gradients = [torch.randn(shape, generator=generator) * 0.01 for _ in range(2)]

    def gradient(self, i: int) -> Tensor:
        return self.gradients[i % len(self.gradients)]


class Ours:
    """The local engine with one of its optimizers."""

    def __init__(self, work: Workload, optimizer: str = "adagrad_optimizer", storage: str = "PLAIN") -> None:
        names = [str(t) for t in range(TABLES)]
        tables = [TableSpec(n, work.rows, work.dim, storage=storage) for n in names]
        lookups = [LookupSpec(n, n, n) for n in names]
        self.engine = LocalEngine(tables, lookups, keys=names)
        self.optimizer = SPARSE_OPTIMIZERS[optimizer](self.engine, lr=LR)  # type: ignore[call-arg]
        self.names, self.work = names, work
        counts = [BATCH] * TABLES
        self.ids = [Ids(v, work.lengths, counts, None, work.bag == 1) for v in work.values]

    def forward(self, i: int) -> Tensor:
        return self.engine(self.ids[i % len(self.ids)]).pooled(self.names)

    def step(self, i: int) -> None:
        self.forward(i).backward(self.work.gradient(i))
        self.optimizer.step()

    def weights(self) -> Tensor:
        rows = np.arange(min(self.work.rows, 1000))
        tables = self.engine.tables.values()
        for table in tables:
            table.materialise(rows)
        return torch.stack([torch.from_numpy(t.read(t.slots_for(rows))) for t in tables])


class Fbgemm:
    """FBGEMM's fused CPU kernels, as TorchRec uses them."""

    def __init__(self, work: Workload) -> None:
        from fbgemm_gpu.split_table_batched_embeddings_ops_common import BoundsCheckMode
        from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
            ComputeDevice,
            EmbeddingLocation,
            OptimType,
            SplitTableBatchedEmbeddingBagsCodegen,
        )

        spec = (work.rows, work.dim, EmbeddingLocation.HOST, ComputeDevice.CPU)
        self.module = SplitTableBatchedEmbeddingBagsCodegen(
            [spec] * TABLES,
            optimizer=OptimType.EXACT_ADAGRAD,
            learning_rate=LR,
            eps=EPS,
            bounds_check_mode=BoundsCheckMode.FATAL,
            feature_table_map=list(range(TABLES)),
            device=torch.device("cpu"),
        )
        self.work = work

    def load(self, ours: Ours) -> None:
        for table, weight in zip(
            ours.engine.tables.values(), self.module.split_embedding_weights(), strict=True
        ):
            for i in range(0, self.work.rows, 1 << 16):
                rows = np.arange(i, min(i + (1 << 16), self.work.rows))
                weight[i : i + len(rows)] = torch.from_numpy(table.initial(rows))

    def step(self, i: int) -> None:
        values = self.work.values[i % self.work.batches]
        self.module(values, self.work.offsets).backward(self.work.gradient(i))

    def weights(self) -> Tensor:
        count = min(self.work.rows, 1000)
        return torch.stack([w[:count].clone() for w in self.module.split_embedding_weights()])


class Torch:
    """torch.nn.EmbeddingBag(sparse=True) with torch's Adagrad."""

    def __init__(self, work: Workload) -> None:
        bags = [torch.nn.EmbeddingBag(work.rows, work.dim, mode="sum", sparse=True) for _ in range(TABLES)]
        self.bags, self.work = torch.nn.ModuleList(bags), work
        self.optimizer = torch.optim.Adagrad(self.bags.parameters(), lr=LR, eps=EPS)

    @torch.no_grad()
    def load(self, fbgemm: Fbgemm) -> None:
        for bag, weight in zip(self.bags, fbgemm.module.split_embedding_weights(), strict=True):
            bag.weight.copy_(weight)  # type: ignore[operator, union-attr]

    def step(self, i: int) -> None:
        parts = self.work.values[i % self.work.batches].view(TABLES, -1)
        offsets = self.work.offsets[:BATCH]
        out = torch.cat([bag(ids, offsets) for bag, ids in zip(self.bags, parts, strict=True)], dim=1)
        self.optimizer.zero_grad()
        out.backward(self.work.gradient(i))
        self.optimizer.step()

    def weights(self) -> Tensor:
        count = min(self.work.rows, 1000)
        return torch.stack([bag.weight[:count].detach().clone() for bag in self.bags])  # type: ignore[index]


def interleaved(steps: dict[str, tuple[int, Step]], rounds: int) -> dict[str, float]:
    """Median seconds of each step: all are run in turn, IN_A_ROW at a time, each with its threads."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    clock = time.thread_time if CPU_TIME else time.perf_counter
    for i in range(0, rounds + 2, IN_A_ROW - 1):
        for name, (count, step) in steps.items():
            torch.set_num_threads(1 if CPU_TIME else count)
            for place in range(IN_A_ROW):
                begin = clock()
                step(i + place)
                if i >= 2 and place > 0:
                    times[name].append(clock() - begin)
    return {name: median(values) for name, values in times.items()}


def close(a: Tensor, b: Tensor) -> bool:
    """Whether two engines agree on weights after training: sums may differ in the last bits."""
    return bool(torch.allclose(a, b, rtol=1e-3, atol=2e-5))


class Report:
    """The bars, each printed when it is known."""

    def __init__(self) -> None:
        self.bars: list[Bar] = []

    def add(self, name: str, ratio: float, goal: float, at_least: bool, note: str) -> None:
        self.bars.append(Bar(name, ratio, goal, at_least=at_least, note=note))
        print(describe_bar(self.bars[-1]), flush=True)


def against_peers(
    report: Report, name: str, work: Workload, goal: float, rounds: int, with_torch: bool
) -> None:
    """Recgrad's throughput over FBGEMM's (and torch's, for comparison)."""
    ours, peer = Ours(work), Fbgemm(work)
    peer.load(ours)
    steps: dict[str, tuple[int, Step]] = {
        "ours": (threads(), ours.step),
        "FBGEMM, 1 thread": (1, peer.step),
    }
    if threads() > 1:
        steps["FBGEMM, 2 threads"] = (2, peer.step)
    reference = None
    if with_torch:
        reference = Torch(work)
        reference.load(peer)
        steps["torch"] = (threads(), reference.step)
    for i in range(2):  # correctness first
        ours.step(i)
        peer.step(i)
        if reference:
            reference.step(i)
    if not close(ours.weights(), peer.weights()) or (
        reference and not close(ours.weights(), reference.weights())
    ):
        raise SystemExit(f"{name}: the engines disagree")
    # each peer trains its own tables, so running FBGEMM twice as often does not matter
    times = interleaved(steps, rounds)
    best = min(value for key, value in times.items() if key.startswith("FBGEMM"))
    note = ", ".join(f"{key} {1000 * value:.1f} ms" for key, value in times.items())
    report.add(f"{name}: × FBGEMM", best / times["ours"], goal, True, note)


def optimizers(report: Report, work: Workload, rounds: int) -> None:
    """Time of other rules relative to Adagrad's."""
    names = [
        "adam_optimizer",
        "partial_rowwise_adam_optimizer",
        "rowwise_adagrad_optimizer",
        "lamb_optimizer",
    ]
    runs = {name: Ours(work, name) for name in ["adagrad_optimizer", *names]}
    times = interleaved({name: (threads(), run.step) for name, run in runs.items()}, rounds)
    for name in names:
        ratio = times[name] / times["adagrad_optimizer"]
        report.add(f"{name}: × Adagrad's time", ratio, 2.0, False, f"{1000 * times[name]:.1f} ms")


def catching_up(report: Report, name: str, work: Workload, rounds: int) -> None:
    """Dense Adam's result (lazy: false) against lazy Adam, both as after many updates."""
    runs = {}
    for lazy in (True, False):
        run = runs[lazy] = Ours(work, "adam_optimizer")
        run.optimizer = optimizer = Adam(run.engine, lr=LR, lazy=lazy)
        for table in run.names:
            shapes = optimizer.state_shapes(table)
            none = {state: np.empty((0, *shape), np.float32) for state, shape in shapes.items() if shape}
            optimizer.import_state(table, np.empty(0, np.int64), {**none, "t": np.array(10_000)})
        for i in range(work.batches):
            run.step(i)
    times = interleaved({str(lazy): (threads(), run.step) for lazy, run in runs.items()}, rounds)
    note = ", ".join(f"lazy: {key.lower()} {1000 * value:.1f} ms" for key, value in times.items())
    ratio = times["False"] / times["True"]
    report.add(f"{name}: dense Adam's result, × the time of lazy Adam", ratio, 1.3, False, note)


def storage(report: Report, work: Workload, rounds: int) -> None:
    """The compact store against the plain array: time and memory."""
    runs = {"plain": Ours(work), "compact": Ours(work, storage="COMPACT")}
    for i in range(work.batches):
        for run in runs.values():
            run.step(i)
    if not torch.equal(runs["plain"].weights(), runs["compact"].weights()):
        raise SystemExit("plain and compact storage disagree")
    times = interleaved({name: (threads(), run.step) for name, run in runs.items()}, rounds)
    note = ", ".join(f"{key} {1000 * value:.1f} ms" for key, value in times.items())
    report.add("compact: × plain's time", times["compact"] / times["plain"], 1.7, False, note)


def scaling(report: Report, rounds: int) -> None:
    """The cost of a step with 1B rows against 10M."""
    small, large = Workload(10_000_000 // TABLES, 16), Workload(1_000_000_000 // TABLES, 16)
    begin = time.perf_counter()
    runs = {"10M rows": Ours(small, storage="AUTO"), "1B rows": Ours(large, storage="AUTO")}
    seconds = time.perf_counter() - begin
    for i in range(small.batches):
        for run in runs.values():
            run.step(i)
    times = interleaved({name: (threads(), run.step) for name, run in runs.items()}, rounds)
    note = ", ".join(f"{key} {1000 * value:.1f} ms" for key, value in times.items())
    report.add("1B rows: × the time of 10M", times["1B rows"] / times["10M rows"], 2.0, False, note)
    report.add("opening both, seconds", seconds, 5.0, False, "")


_CHILD = """
import gc, json, sys, time
import numpy as np, psutil, torch
from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.optim.sparse import Adagrad
rows, storage, batches = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
def build(rows, storage):
    engine = LocalEngine([TableSpec("t", rows, 16, storage=storage)], [LookupSpec("l", "k", "t")], keys=["k"])
    return engine, Adagrad(engine, lr=0.1)
def train(engine, optimizer, count, ids):
    out = engine(Ids(ids, torch.ones(count, dtype=torch.int32), [count], single=True)).pooled(["l"])
    out.backward(torch.ones_like(out))
    optimizer.step()
torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1)  # torch imports its compiler here
clock = time.process_time if sys.argv[4] == "cpu" else time.perf_counter
begin = clock()
train(*build(1000, storage), 8, torch.arange(8))
first = clock() - begin
generator = torch.Generator().manual_seed(0)
count = 1 << 15
everything = torch.randperm(rows, generator=generator) if storage == "PLAIN" else None
# What steps need for themselves is there when enough of them were taken. The engine that took them stays: it
# would go, and give memory back, while the other's is measured.
settled = build(1 << 16, storage)
for _ in range(8):
    train(*settled, count, torch.randperm(1 << 16)[:count])
gc.collect()
before = psutil.Process().memory_info().rss
engine, optimizer = build(rows, storage)
for i in range(batches):
    ids = torch.randint(0, rows, (count,), generator=generator)
    if everything is not None:
        ids = everything[i * count : (i + 1) * count]
    train(engine, optimizer, len(ids), ids)
used = psutil.Process().memory_info().rss - before
table = engine.tables["t"].memory()
print(json.dumps({"first": first, "used": used, "rows": table.rows, "reported": table.total_bytes}))
"""


def child(rows: int, kind: str, batches: int) -> dict[str, Any]:
    """Run a training of one table in a process of its own."""
    command = [sys.executable, "-c", _CHILD, str(rows), kind, str(batches), "cpu" if CPU_TIME else ""]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def memory(report: Report) -> None:
    """Resident memory against touched rows × bytes, and the first call in a fresh process."""
    plain = child(1 << 20, "PLAIN", 32)
    ideal = plain["rows"] * 16 * 8
    report.add(
        "plain: × bytes of weights and state", plain["used"] / ideal, 1.15, False, f"{plain['used'] >> 20} MB"
    )
    compact = child(40_000_000, "COMPACT", 48)
    ideal = compact["rows"] * 16 * 8
    note = f"{compact['used'] >> 20} MB for {compact['rows']} touched of 40M rows"
    report.add("compact: × touched bytes", compact["used"] / ideal, 1.6, False, note)
    report.add("first call from the kernel cache, seconds", compact["first"], 1.5, False, "")


def threads() -> int:
    """As many as the machine has, at most two, so that results compare."""
    return 1 if CPU_TIME else min(2, MACHINE_THREADS)


MACHINE_THREADS = torch.get_num_threads()
CPU_TIME = False


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument(
        "--only",
        nargs="*",
        help="of: main bags small wide optimizers storage scaling memory lazy 'lazy small' …",
    )
    parser.add_argument("--cpu-time", action="store_true", help="compare CPU time on one thread each")
    options = parser.parse_args()
    global CPU_TIME
    CPU_TIME = options.cpu_time
    if not (keep_freed_memory() and ask_for_huge_pages()):
        print("allocator settings are the system's own")
    report, rounds = Report(), options.rounds
    cases: dict[str, Callable[[], None]] = {
        "main": lambda: against_peers(
            report, "10M rows, dim 16", Workload(10_000_000 // TABLES, 16), 5, rounds, True
        ),
        "bags": lambda: against_peers(
            report, "bags of 10", Workload(10_000_000 // TABLES, 16, bag=10, batches=3), 4, rounds // 2, False
        ),
        "small": lambda: against_peers(
            report, "100k rows", Workload(100_000 // TABLES, 16), 4, rounds, False
        ),
        "wide": lambda: against_peers(
            report, "dim 64", Workload(2_600_000 // TABLES, 64), 3.5, rounds, False
        ),
        "optimizers": lambda: optimizers(report, Workload(2_600_000 // TABLES, 16), rounds),
        "lazy": lambda: catching_up(report, "2.6M rows", Workload(2_600_000 // TABLES, 16), rounds),
        "lazy small": lambda: catching_up(report, "100k rows", Workload(100_000 // TABLES, 16), rounds),
        "lazy large": lambda: catching_up(report, "10M rows", Workload(10_000_000 // TABLES, 16), rounds),
        "lazy wide": lambda: catching_up(report, "dim 64", Workload(2_600_000 // TABLES, 64), rounds),
        "lazy bags": lambda: catching_up(
            report, "bags of 10", Workload(2_600_000 // TABLES, 16, bag=10, batches=3), rounds // 2
        ),
        "storage": lambda: storage(report, Workload(10_000_000 // TABLES, 16), rounds),
        "scaling": lambda: scaling(report, rounds),
        "memory": lambda: memory(report),
    }
    for name, case in cases.items():
        if not options.only or name in options.only:
            case()
    write_bars(options.json, report.bars)


if __name__ == "__main__":
    main()
