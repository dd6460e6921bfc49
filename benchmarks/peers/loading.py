"""Loads a bundle in a fresh process and reads some of its rows: seconds and resident bytes as JSON.

python benchmarks/peers/loading.py BUNDLE ROWS.parquet
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recgrad.serving.app import resident_bytes
from recgrad.serving.scorer import Scorer

READ = 1000


def forget(folder: Path) -> None:
    """Drop the pages that checksums have read: the kernel maps what is there in pieces of megabytes."""
    for path in folder.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    first = resident_bytes()
    start = time.perf_counter()
    scorer = Scorer.load(sys.argv[1])
    seconds = time.perf_counter() - start
    loaded = resident_bytes()
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
