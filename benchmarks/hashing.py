"""Speed of the hashes that make ids of texts, over Arrow's buffers, on one thread.

XXH64 is the peer of the others: turn by turn in this process; medians over the rounds of CPU seconds, so
that other work on the machine counts less.

    python benchmarks/hashing.py [--texts N] [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from results.bars import write_bars

from recgrad.data.hashes import DEFAULT_HASH, HASHES
from recgrad.data.hashing import string_spans

BUCKETS = 1_000_003
LENGTHS = [(3, 3), (5, 5), (8, 8), (11, 11), (16, 16), (20, 20), (36, 36), (64, 64), (1, 24)]


def texts_of(count: int, shortest: int, longest: int) -> pa.Array:
    """Lower-case texts of these lengths."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(shortest, longest + 1, count)
    letters = rng.integers(97, 123, int(lengths.sum())).astype(np.uint8).tobytes().decode()
    ends = np.cumsum(lengths)
    return pa.array([letters[end - length : end] for end, length in zip(ends, lengths, strict=True)])


def medians(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """CPU seconds of each call, all of them in turn."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()  # compiles
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.process_time()
            call()
            times[name].append(time.process_time() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def show(what: str, found: dict[str, float], count: int) -> None:
    """A line: nanoseconds of the peer, and how many times as long the others take."""
    base = found[DEFAULT_HASH]
    others = ", ".join(f"{name} × {found[name] / base:.2f}" for name in found if name != DEFAULT_HASH)
    print(f"{what:<24} {DEFAULT_HASH} {base / count * 1e9:6.2f} ns, {others}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--texts", type=int, default=200_000)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    for shortest, longest in LENGTHS:
        spans = string_spans(texts_of(args.texts, shortest, longest))
        calls = {name: partial(hash.buckets, *spans, BUCKETS) for name, hash in HASHES.items()}
        length = f"{shortest}" if shortest == longest else f"{shortest} to {longest}"
        show(f"texts of {length} bytes", medians(calls, args.rounds), args.texts)
    numbers = np.random.default_rng(0).integers(0, 10**7, args.texts)
    calls = {name: partial(hash.ints, numbers) for name, hash in HASHES.items()}
    show("integers below 10^7", medians(calls, args.rounds), args.texts)
    write_bars(args.json, [])  # it informs, and is held to nothing


if __name__ == "__main__":
    main()
