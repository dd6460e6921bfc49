"""What tables cost beside their steps: memory for each id that was learned, and steps beside a checkpoint.

    python benchmarks/tables.py [--json FILE] [--ids MILLIONS] [--only memory checkpoint]

1. Resident memory for each id of 26 features (tables of dim 16 and of dim 4, Adagrad: 160 bytes of weights
   and state), over those 160 bytes. Tables have 2^20 rows, the largest that AUTO makes plain one day, and 1 M
   ids are touched of all 26; then 10 M of compact tables of 2^27 rows. Each in a process of its own.
2. Checkpoints of 10 M ids beside the steps of a DeepFM (batch 8192, 512-256-128): what the loop waits until
   it may go on, and by how much the slowest step while rows are copied is slower than the slowest of as many
   steps after it, over the median of these. A machine has slow steps of its own: those of the checkpoint are
   the ones beyond them. The median of three checkpoints; each has its line. The peer is the copy in one go
   that `parts()` makes, of the same tables in the same process. Then three of a fifth as many ids under
   dense Adam (`lazy: false`), whose rows have more to copy and move on while they are. Kernels are compiled
   before, as runs have it done.

Rows of the checkpoint are compared, bit for bit, with those of a copy in one go.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import torch
from results.bars import Bar, describe_bar, write_bars
from torch import nn

from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.optim.sparse import Adagrad, Adam
from recgrad.training.checkpoint.manager import step_aside
from recgrad.training.runtime import ask_for_huge_pages, keep_freed_memory

FEATURES, BATCH, DIMS = 26, 8192, (16, 4)
PAYLOAD = sum(8 * dim for dim in DIMS)  # bytes of weights and of Adagrad's state
MEMORY, STANDSTILL = 1.3, 1.0
ADAGRAD, DENSE_ADAM = partial(Adagrad, lr=0.01), partial(Adam, lr=0.01, lazy=False)


class Tables:
    """The tables of a DeepFM, of which each step touches ids that no step has touched before."""

    def __init__(self, rows: int, storage: str, optimizer: Callable[[LocalEngine], Any] = ADAGRAD) -> None:
        keys = [f"f{i}" for i in range(FEATURES)]
        self.names = [[f"{key}_{dim}" for key in keys] for dim in DIMS]
        self.engine = LocalEngine(
            [TableSpec(f"{key}_{dim}", rows, dim, storage=storage) for dim in DIMS for key in keys],
            [LookupSpec(f"{key}_{dim}", key, f"{key}_{dim}") for dim in DIMS for key in keys],
            keys=keys,
        )
        self.optimizer = optimizer(self.engine)
        self.rows, self.touched = rows, 0
        widths = [FEATURES * DIMS[0], 512, 256, 128, 1]
        layers = [part for pair in pairwise(widths) for part in (nn.Linear(*pair), nn.ReLU())]
        self.dense = nn.Sequential(*layers[:-1])

    def new_ids(self, count: int) -> torch.Tensor:
        """The next ids of each feature: an odd factor spreads them over the table, each once."""
        numbers = np.arange(self.touched, self.touched + count, dtype=np.int64)
        self.touched += count
        return torch.from_numpy(numbers * 0x9E3779B1 % self.rows)

    def step(self, ids: torch.Tensor, dense: bool = False) -> None:
        """An update of these ids of all features."""
        count = len(ids)
        given = Ids(
            ids.repeat(FEATURES),
            torch.ones(count * FEATURES, dtype=torch.int32),
            [count] * FEATURES,
            single=True,
        )
        embedded = self.engine(given)
        wide, narrow = (embedded.pooled(names) for names in self.names)
        loss = self.dense(wide).sum() + narrow.sum() if dense else wide.sum() + narrow.sum()
        loss.backward()
        self.optimizer.step()

    def fill(self, ids: int) -> None:
        """Touch so many ids of all features together."""
        while self.touched * FEATURES < ids:
            self.step(self.new_ids(min(BATCH, -(-ids // FEATURES) - self.touched)))


def memory_of(rows: int, storage: str, ids: int) -> dict[str, float]:
    """Bytes of resident memory for each touched id, without what steps themselves need."""
    process = psutil.Process()
    Tables(1 << 14, storage).fill(4 * BATCH * FEATURES)  # compiles, and torch's own buffers
    gc.collect()  # engines are cycles: the memory of these tables would go back while the others are measured
    tables = Tables(rows, storage)
    # The buffers of a step are those of a batch of different ids, again and again until the allocator has
    # settled: with one id, once, most of their pages would be touched later and count as memory of ids. The
    # first batch of ids is therefore counted as tables themselves say.
    first = tables.new_ids(BATCH)
    for _ in range(8):
        tables.step(first)
    own = sum(table.memory().total_bytes for table in tables.engine.tables.values())
    before = process.memory_info().rss - own
    tables.fill(ids)
    return {"bytes": (process.memory_info().rss - before) / ids, "ids": tables.touched * FEATURES}


def memory(largest: float) -> list[Bar]:
    """Each case in a process of its own: freed memory does not always go back."""
    bars = []
    for name, rows, storage, ids in (
        ("AUTO, tables of 64 MB, 1 M ids", 1 << 20, "AUTO", 1_000_000),
        ("COMPACT, tables of 64 MB, 1 M ids", 1 << 20, "COMPACT", 1_000_000),
        (f"AUTO, tables of 8 GB, {largest:g} M ids", 1 << 27, "AUTO", int(largest * 1e6)),
    ):
        arguments = ["--child", str(rows), storage, str(ids)]
        done = subprocess.run(
            [sys.executable, __file__, *arguments], check=True, capture_output=True, text=True
        )
        found = json.loads(done.stdout.splitlines()[-1])
        note = f"{found['bytes']:.0f} bytes an id"
        bars.append(
            Bar(f"{name}: memory over {PAYLOAD} bytes an id", found["bytes"] / PAYLOAD, MEMORY, False, note)
        )
        print(describe_bar(bars[-1]), flush=True)
    return bars


def checkpoints(millions: float) -> list[Bar]:
    """Under Adagrad and under dense Adam."""
    ask_for_huge_pages()  # as commands do
    checkpoint(ADAGRAD, 0.5, 1)  # compiles
    bars = _describe("checkpoint", *checkpoint(ADAGRAD, millions, 3))
    return bars + _describe("dense Adam", *checkpoint(DENSE_ADAM, millions / 5, 3))


@dataclass
class Times:
    """Seconds of one checkpoint, and of steps beside it and after it."""

    begun: float  # what the loop waited for
    beside: list[float]
    alone: list[float]

    @property
    def standstill(self) -> float:
        """What the checkpoint held up at once, beyond what the machine does by itself."""
        return self.begun + max(self.beside) - max(self.alone)


def checkpoint(
    optimizer: Callable[[LocalEngine], Any], millions: float, times: int
) -> tuple[list[Times], float]:
    """Steps while the rows of checkpoints are copied, steps alone, and a copy in one go."""
    gc.collect()  # engines are cycles: the tables before would go in the middle of a step
    tables = Tables(1 << 27, "AUTO", optimizer)
    tables.fill(int(millions * 1e6))
    rng = np.random.default_rng(0)
    batches = [
        torch.from_numpy(rng.integers(0, tables.touched, BATCH) * 0x9E3779B1 % tables.rows) for _ in range(64)
    ]

    def timed_step(i: int) -> float:
        begin = time.perf_counter()
        tables.step(batches[i % len(batches)], dense=True)
        return time.perf_counter() - begin

    for i in range(4):
        timed_step(i)
    found = []
    for _ in range(times):
        begun, copied = _begin(tables)
        beside: list[float] = []
        while not copied.done():
            beside.append(timed_step(len(beside)))
        del copied
        found.append(Times(begun, beside, [timed_step(i) for i in range(len(beside))]))
    _, copied = _begin(tables)
    begin = time.perf_counter()
    whole = [part for table in tables.engine.tables.values() for part in table.parts()]
    in_one_go = time.perf_counter() - begin
    for i in range(8):
        timed_step(i)
    _compare(whole, copied.result())
    return found, in_one_go


def _begin(tables: Tables) -> tuple[float, Future[list[Any]]]:
    """Begin a checkpoint, whose rows another thread copies; seconds that this took, and the rows to come."""
    begin = time.perf_counter()
    copies = [table.begin_copy() for table in tables.engine.tables.values()]
    begun = time.perf_counter() - begin
    pool = ThreadPoolExecutor(1, initializer=step_aside)  # as runs do
    copied = pool.submit(lambda: [part for copy in copies for part in copy()])
    pool.shutdown(wait=False)
    return begun, copied


def _describe(name: str, found: list[Times], in_one_go: float) -> list[Bar]:
    """The bars of checkpoints, printed with what they were made of."""
    step = median(time for times in found for time in times.alone)
    print(f"\n{name}: steps alone, median {1000 * step:.0f} ms; a copy in one go {in_one_go:.2f} s")
    for times in found:
        print(
            f"  begun in {1000 * times.begun:.1f} ms; {len(times.beside)} steps beside it, "
            f"median {1000 * median(times.beside):.0f}, at most {1000 * max(times.beside):.0f} ms; "
            f"as many after it, at most {1000 * max(times.alone):.0f} ms"
        )
    standstill = median(times.standstill for times in found)
    bars = [
        Bar(f"{name}: standstill over a step", standstill / step, STANDSTILL, False),
        Bar(f"{name}: standstill over a copy in one go", standstill / in_one_go, 0.2, False),
    ]
    print("\n".join(map(describe_bar, bars)), flush=True)
    return bars


def _compare(whole: list[Any], copied: list[Any]) -> None:
    for one, other in zip(whole, copied, strict=True):
        same = np.array_equal(one.row_ids, other.row_ids) and one.weights.tobytes() == other.weights.tobytes()
        if not same or any(s.tobytes() != other.states[name].tobytes() for name, s in one.states.items()):
            raise SystemExit("the rows of the checkpoint are not those of its moment")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--ids", type=float, default=10, metavar="MILLIONS", help="of the larger case")
    parser.add_argument("--only", nargs="*", choices=("memory", "checkpoint"))
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    keep_freed_memory()
    if options.child:
        rows, storage, ids = options.child
        print(json.dumps(memory_of(int(rows), storage, int(ids))))
        return 0
    bars: list[Bar] = []
    for name, case in (("memory", memory), ("checkpoint", checkpoints)):
        if not options.only or name in options.only:
            bars += case(options.ids)
    write_bars(options.json, bars)
    return 0


if __name__ == "__main__":
    sys.exit(main())
