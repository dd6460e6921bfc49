"""Loads a bundle in a fresh process and reads some of its rows: seconds and resident bytes as JSON.

Seconds are those of all imports and of loading; memory is counted from after the imports.

python benchmarks/peers/loading.py BUNDLE ROWS.parquet
"""

from __future__ import annotations

import time

START = time.perf_counter()

import json  # noqa: E402
import os  # noqa: E402
import sys  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402

from recgrad.serving.scorer import Scorer  # noqa: E402

READ = 1000


def resident_bytes() -> int:
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[1]) * 4096


def forget(folder: Path) -> None:
    """Drop the pages that checksums have read: the kernel maps what is there in pieces of megabytes."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    first = resident_bytes()
    scorer = Scorer.load(sys.argv[1])
    seconds = time.perf_counter() - START
    loaded = resident_bytes()
    import pyarrow.parquet as pq

    rows = pq.read_table(sys.argv[2], columns=scorer.schema.names).slice(0, READ).combine_chunks()
    scorer.score(rows)  # so that what scoring itself needs is there
    forget(Path(sys.argv[1]))
    before = resident_bytes()
    large = np.random.default_rng(0).integers(0, 10_000_000, READ)
    name = "cat_0"
    scorer.score(rows.set_column(rows.schema.get_field_index(name), name, pa.array(large)))
    print(
        json.dumps(
            {"seconds": seconds, "load_bytes": loaded - first, "read_bytes": resident_bytes() - before}
        )
    )


if __name__ == "__main__":
    main()
