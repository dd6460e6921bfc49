"""What sequence encoders cost as histories grow, up to 10,000 positions: a forward and a backward pass.

The peer is `din_encoder`, whose attention scores every position by an MLP; beside it self-attention, whose
cost grows with the square (up to 1,000 positions). All in turn on one thread of this process; medians over
the rounds of CPU seconds, so that other work on the machine counts less.

    python benchmarks/long_history.py [--rows N] [--rounds N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from recgrad.nn.encoders.base import SequenceEncoder, SequenceFields, build_encoder

DIM, KINDS = 32, 200  # of a position: half of it the item's, half its category's
LENGTHS = (100, 1_000, 10_000)
ENCODERS = {
    "din_encoder": {"attn_mlp": {"hidden_units": [64, 32]}},
    "self_attention_encoder": {"multihead_attn_dim": 64, "num_heads": 2},
    "eta_encoder": {},
    "sdim_encoder": {},
    "sim_encoder": {"query_feature": "category", "sequence_feature": "history__category"},
}
FIELDS = SequenceFields(
    {"category": slice(0, DIM // 2)},
    {"history__category": slice(0, DIM // 2)},
    {"category": "category", "history__category": "category"},
)
GOALS = {"eta_encoder": 0.5, "sdim_encoder": 0.5, "sim_encoder": 0.5}


def inputs(rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Queries and histories of one length, with categories of a table."""
    generator = torch.Generator().manual_seed(length)
    table = torch.randn(KINDS, DIM // 2, generator=generator)
    query = torch.randn(rows, DIM, generator=generator)
    sequence = torch.randn(rows * length, DIM, generator=generator)
    for x in (query, sequence):
        x[:, : DIM // 2] = table[torch.randint(KINDS, (len(x),), generator=generator)]
    return query, sequence.requires_grad_(), torch.full((rows,), length)


def step(encoder: SequenceEncoder, *given: torch.Tensor) -> None:
    """A forward and a backward pass."""
    given[1].grad = None
    encoder(*given).sum().backward()


def medians(calls: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    encoders = {name: build_encoder(name, DIM, DIM, params, FIELDS) for name, params in ENCODERS.items()}
    found: dict[int, dict[str, float]] = {}
    for length in LENGTHS:
        given = inputs(args.rows, length)
        calls = {
            name: (lambda encoder=encoder, given=given: step(encoder, *given))
            for name, encoder in encoders.items()
            if name != "self_attention_encoder" or length <= 1_000
        }
        found[length] = medians(calls, args.rounds)
    print(f"{args.rows} rows, positions {DIM} wide: CPU milliseconds a step (× din_encoder)")
    print(f"{'':<24}" + "".join(f"{length:>20,}" for length in LENGTHS))
    for name in encoders:
        cells = []
        for length in LENGTHS:
            seconds, base = found[length].get(name), found[length]["din_encoder"]
            cells.append("-" if seconds is None else f"{seconds * 1e3:.1f} (× {seconds / base:.2f})")
        print(f"{name:<24}" + "".join(f"{cell:>20}" for cell in cells))
    if args.json is not None:
        longest = found[LENGTHS[-1]]
        bars = []
        for name, goal in GOALS.items():
            ratio = longest[name] / longest["din_encoder"]
            bars.append(
                {"name": f"{name} / din_encoder at {LENGTHS[-1]} positions", "ratio": ratio, "goal": goal}
            )
        args.json.write_text(json.dumps([{**bar, "holds": bar["ratio"] <= bar["goal"]} for bar in bars]))


if __name__ == "__main__":
    main()
