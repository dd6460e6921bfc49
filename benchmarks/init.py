"""`recgrad init` against pyarrow's own read of the same file, and its memory for ten times as many rows.

    python benchmarks/init.py                 2 million rows of 40 columns (and a tenth of them, for memory)
    python benchmarks/init.py --rows 10000000

The peer reads every column of every row once with `pyarrow.parquet.ParquetFile.iter_batches`, on as many
threads. Each measure runs in a process of its own; times are medians of interleaved runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

COLUMNS = 40
GROUP = 100_000

READ = """
import sys, time, resource
import pyarrow.parquet as pq
start = time.perf_counter()
rows = 0
for batch in pq.ParquetFile(sys.argv[1]).iter_batches(65536):
    rows += batch.num_rows
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
INIT = """
import sys, time, resource
from recgrad.starting import InitSettings, begin
begin(InitSettings(sys.argv[2], sys.argv[3] + "/warm"))
start = time.perf_counter()
begin(InitSettings(sys.argv[1], sys.argv[3] + "/out"))
print(time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def write_table(path: Path, rows: int) -> None:
    """A log of 40 columns: ids, codes, numbers, texts, a label and a time."""
    rng = np.random.default_rng(0)
    cities = pa.array([f"city {i}" for i in range(500)])
    writer = None
    for first in range(0, rows, GROUP):
        size = min(GROUP, rows - first)
        columns: dict[str, Any] = {
            "user_id": rng.integers(0, 1_000_000, size),
            "item_id": rng.integers(0, 100_000, size),
            "timestamp": np.arange(first, first + size) + 1_700_000_000,
            "click": (rng.random(size) < 0.2).astype(np.int64),
        }
        for i in range(12):
            columns[f"code_{i}"] = rng.integers(0, 10 ** (1 + i % 5), size)
        for i in range(14):
            columns[f"number_{i}"] = rng.normal(size=size)
        for i in range(10):
            columns[f"text_{i}"] = cities.take(pa.array(rng.integers(0, 5 * (i + 1), size)))
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema)
        writer.write_table(table)
    assert writer is not None
    writer.close()


def run(program: str, *arguments: str) -> tuple[float, float]:
    """Seconds and peak MB of a program in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True
    )
    seconds, memory = done.stdout.split()[-2:]
    return float(seconds), float(memory)


def main() -> None:
    """Measure, print a table, and say which bars hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        large, small = Path(folder) / "large.parquet", Path(folder) / "small.parquet"
        write_table(large, args.rows)
        write_table(small, args.rows // 10)
        reads, inits, memories = [], [], []
        for number in range(args.repeats):
            reads.append(run(READ, str(large))[0])
            seconds, memory = run(INIT, str(large), str(small), f"{folder}/{number}")
            inits.append(seconds)
            memories.append(memory)
        base = run(INIT, str(small), str(small), f"{folder}/small")[1]
    ratio = statistics.median(inits) / statistics.median(reads)
    growth = statistics.median(memories) / base
    results = [
        {"name": "init over pyarrow's read", "ratio": ratio, "goal": 3.0, "holds": ratio <= 3.0},
        {"name": "memory of 10x rows over 1x", "ratio": growth, "goal": 1.5, "holds": growth <= 1.5},
    ]
    print(f"{args.rows:,} rows of {COLUMNS} columns, medians of {args.repeats} runs")
    print(f"  pyarrow reads   {statistics.median(reads):7.2f} s")
    print(f"  recgrad init    {statistics.median(inits):7.2f} s")
    peak = statistics.median(memories)
    print(f"  memory          {base:7.0f} MB of {args.rows // 10:,} rows, {peak:.0f} MB of all")
    for result in results:
        holds = "holds" if result["holds"] else "MISSED"
        print(f"  {result['name']:<28} {result['ratio']:5.2f}  (goal {result['goal']})  {holds}")
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
