"""Speed and memory of the loader on a Criteo-shaped parquet file: 1 label, 13 floats, 26 ids.

Peer: pyarrow alone decoding the same columns of the same file in one thread, in this process,
turn by turn with the loader. Times are CPU seconds of the process, so that other work on the
machine does not count; medians over the rounds. Memory is the peak resident size of a
process of its own that runs through a file, less what it has before the first batch.

    python benchmarks/data.py [--rows N] [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from google.protobuf import text_format
from results.bars import Bar, describe_bar, write_bars

from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.data import Loader, build_features, build_loader
from recgrad.models.targets import find_targets

ROW_GROUP = 131_072
BATCH = 8192
CARDINALITIES = [10 ** (1 + i % 6) for i in range(26)]


def write_file(path: Path, rows: int, *, strings: bool, repeat: int = 1) -> None:
    """A file of `rows` rows, `repeat` times over."""
    rng = np.random.default_rng(0)
    words = [
        pa.array([f"{(i * 2654435761) % 2**32:08x}" for i in range(size)]) if strings else None
        for size in CARDINALITIES
    ]
    writer = None
    for start in range(0, rows, ROW_GROUP):
        count = min(ROW_GROUP, rows - start)
        columns: dict[str, pa.Array] = {"label": pa.array((rng.random(count) < 0.25).astype(np.int64))}
        for i in range(13):
            columns[f"int_{i}"] = pa.array(rng.lognormal(size=count).astype(np.float32))
        for i, size in enumerate(CARDINALITIES):
            ids = (size ** rng.random(count)).astype(np.int64) - 1
            columns[f"cat_{i}"] = words[i].take(pa.array(ids)) if strings else pa.array(ids)
        table = pa.table(columns)
        writer = writer or pq.ParquetWriter(path, table.schema)
        for _ in range(repeat):
            writer.write_table(table, row_group_size=ROW_GROUP)
    assert writer is not None
    writer.close()


def open_loader(path: Path, *, strings: bool, shuffle: bool = False) -> Loader:
    text = f"""
    train_input_path: "" eval_input_path: "" model_dir: ""
    data_config {{
      dataset_type: ParquetDataset batch_size: {BATCH} num_workers: 1 fg_mode: FG_DAG label_fields: "label"
      shuffle: {str(shuffle).lower()}
    }}
    model_config {{ losses {{ binary_cross_entropy {{}} }} }}
    """
    for i in range(13):
        text += (
            f'feature_configs {{ raw_feature {{ feature_name: "int_{i}" expression: "user:int_{i}" }} }}\n'
        )
    for i, size in enumerate(CARDINALITIES):
        buckets = f"hash_bucket_size: {size}" if strings else f"num_buckets: {size}"
        text += (
            f'feature_configs {{ id_feature {{ feature_name: "cat_{i}" expression: "user:cat_{i}" '
            f"embedding_dim: 16 {buckets} }} }}\n"
        )
    config = text_format.Parse(text, PipelineConfig())
    features = build_features(config.feature_configs, fg_mode="FG_DAG", multival_sep="\x03")
    return build_loader(config, str(path), features=features, targets=find_targets(config), training=True)


def decode(path: Path) -> int:
    """What pyarrow does alone in one thread."""
    rows = 0
    with pq.ParquetFile(path) as parquet:
        for i in range(parquet.num_row_groups):
            rows += parquet.read_row_group(i, use_threads=False).num_rows
    return rows


def load(loader: Loader) -> int:
    return sum(batch.size for batch in loader.epoch())


def check(path: Path, rows: int) -> None:
    """The batches hold what is in the file."""
    table = pq.read_table(path)
    at = 0
    for batch in open_loader(path, strings=False).epoch():
        part = table.slice(at, batch.size)
        assert np.array_equal(batch.labels["label"].numpy(), part["label"].to_numpy())
        assert np.array_equal(batch.dense["int_7"].numpy()[:, 0], part["int_7"].to_numpy())
        assert np.array_equal(batch.sparse["cat_25"].values.numpy(), part["cat_25"].to_numpy())
        at += batch.size
    assert at == rows


def cpu_seconds(work: object, *args: object) -> float:
    start = time.process_time()
    work(*args)  # type: ignore[operator]
    return time.process_time() - start


def peak_memory(path: Path) -> float:
    """MB that a process of its own needs beyond what it has before the first batch."""
    command = [sys.executable, __file__, "--peak", str(path)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(path: Path) -> None:
    loader = open_loader(path, strings=False)
    small = path.with_name("warm.parquet")
    load(open_loader(small, strings=False))  # compiles the kernels
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = status_mb("VmRSS")
    load(loader)
    print(status_mb("VmHWM") - before)


def status_mb(field: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--peak", type=Path)
    options = parser.parse_args()
    if options.peak:
        print_peak(options.peak)
        return
    pa.set_cpu_count(1)
    pa.set_io_thread_count(1)
    with tempfile.TemporaryDirectory() as folder:
        write_bars(options.json, run(Path(folder), options.rows, options.rounds))


def run(folder: Path, rows: int, rounds: int) -> list[Bar]:
    ints, texts = folder / "ints.parquet", folder / "texts.parquet"
    once, tenfold = folder / "once.parquet", folder / "tenfold.parquet"
    write_file(ints, rows, strings=False)
    write_file(texts, rows, strings=True)
    write_file(once, rows // 4, strings=False)
    write_file(tenfold, rows // 4, strings=False, repeat=10)
    write_file(folder / "warm.parquet", 1000, strings=False)
    check(once, rows // 4)
    open_ints, open_texts = open_loader(ints, strings=False), open_loader(texts, strings=True)
    shuffled = open_loader(ints, strings=False, shuffle=True)
    load(open_loader(folder / "warm.parquet", strings=False))
    next(iter(open_texts.epoch()))
    times: dict[str, list[float]] = {"pyarrow": [], "ints": [], "texts": [], "shuffled": []}
    for _ in range(rounds):
        times["pyarrow"].append(cpu_seconds(decode, ints))
        times["ints"].append(cpu_seconds(load, open_ints))
        times["texts"].append(cpu_seconds(load, open_texts))
        times["shuffled"].append(cpu_seconds(load, shuffled))
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"{rows:,} rows, batches of {BATCH}, one thread, median of {rounds} rounds")
    for name, seconds in medians.items():
        print(f"  {name:<10} {seconds:7.2f} s CPU   {rows / seconds / 1e6:6.2f} million rows/s")
    small, large = peak_memory(once), peak_memory(tenfold)
    print(f"  peak memory {small:.0f} MB for {rows // 4:,} rows, {large:.0f} MB for {rows // 4 * 10:,} rows")
    ratios = [
        ("data: loader speed over pyarrow's decode", medians["pyarrow"] / medians["ints"], 1 / 3, True),
        ("data: 26 text columns over 26 int64", medians["texts"] / medians["ints"], 2.5, False),
        ("data: peak memory of 10x the rows", large / small, 1.15, False),
    ]
    bars = [Bar(name, ratio, goal, at_least=at_least) for name, ratio, goal, at_least in ratios]
    print("\n" + "\n".join(map(describe_bar, bars)))
    return bars


if __name__ == "__main__":
    main()
