"""Sequence models on a CPU: jagged attention and the STU layer against padded torch.

    python benchmarks/sequences.py [--seconds 1.5] [--rectools PYTHON] [--json FILE]

Rows have lengths drawn as those of Amazon Beauty's users (at most 50) and by Zipf's law up to 1,024. The
peers are torch's scaled_dot_product_attention, and the STU layer's formula in torch, on rows that are padded
to the longest of the batch. Results are compared first; then forward + backward, interleaved, medians.
Then dlrm_hstu from end to end, see music_log.py, and steps of sasrec on Beauty against those of RecTools:
PYTHON is that of an environment of its own with `pip install 'rectools[torch]'`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np
import torch
from music_log import measure
from peers.padded import padded_stu
from peers.sasrec_epoch import compare_epochs
from results.bars import Bar, write_bars
from torch import Tensor
from torch.nn import functional as F

from recgrad.nn.attention import Setting, jagged_attention
from recgrad.nn.jagged import Segments, pad
from recgrad.nn.stu.layer import STULayer

# How many of 1,000 users of Beauty (5-core) have 4, 5, … events before their last one; the rest is spread.
BEAUTY = {4: 323, 5: 188, 6: 124, 7: 83, 8: 59, 9: 43, 10: 32, 11: 24, 12: 19, 13: 16, 14: 13}
STU_GOAL, SOFTMAX_GOAL = 3.0, 2.0
SHAPES = [(64, 2), (128, 2), (256, 4)]
ROWS = {"beauty": 256, "zipf": 48}


def draw_lengths(kind: str, rows: int) -> list[int]:
    rng = np.random.default_rng(0)
    if kind == "zipf":
        return np.minimum(rng.zipf(1.3, rows) + 4, 1024).tolist()
    short = [length for length, count in BEAUTY.items() for _ in range(count)]
    tail = np.minimum(15 + rng.geometric(0.1, 1000 - len(short)), 50).tolist()
    return rng.choice(short + tail, rows).tolist()


def medians(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """Seconds of each call, interleaved."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        call()
    begin = time.perf_counter()
    while time.perf_counter() - begin < seconds * len(calls) or len(times[next(iter(calls))]) < 3:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: median(values) for name, values in times.items()}


def check(ours: Tensor, theirs: Tensor, segments: Segments, tolerance: float) -> None:
    """Compare [positions, width] with [rows, length, width]."""
    flat = theirs.reshape(-1, theirs.shape[-1])[segments.rows * theirs.shape[1] + segments.places()]
    apart = float((ours - flat).detach().abs().max() / flat.detach().abs().max())
    assert apart < tolerance, f"results differ by {apart}"


def compare_stu(kind: str, dim: int, heads: int, seconds: float) -> dict[str, float]:
    lengths = torch.tensor(draw_lengths(kind, ROWS[kind]))
    segments = Segments.from_lengths(lengths, int(lengths.sum()))
    torch.manual_seed(0)
    layer = STULayer(
        embedding_dim=dim,
        num_heads=heads,
        hidden_dim=dim // heads,
        attention_dim=dim // heads,
        divisor=float(lengths.max()),
        output_dropout_ratio=0.0,
    )
    x = torch.randn(len(segments.rows), dim)
    padded, size = pad(x, segments), int(lengths.max())
    allowed = layer.setting.mask.matrix(lengths, size).float()
    inside = (torch.arange(size) < lengths.unsqueeze(1)).unsqueeze(2).float()

    def ours() -> tuple[Tensor, list[Tensor]]:
        out = layer(x, segments)
        return out, list(torch.autograd.grad(out.square().sum(), list(layer.parameters())))

    def torchs() -> tuple[Tensor, list[Tensor]]:
        out = padded_stu(layer, padded, allowed) * inside
        return out, list(torch.autograd.grad(out.square().sum(), list(layer.parameters())))

    (own, own_grads), (other, other_grads) = ours(), torchs()
    check(own, other, segments, 1e-4)
    for a, b in zip(own_grads, other_grads, strict=True):
        assert float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)) < 1e-3
    return {**medians({"ours": ours, "torch": torchs}, seconds), "fill": len(x) / (size * len(lengths))}


def compare_softmax(kind: str, dim: int, heads: int, seconds: float) -> dict[str, float]:
    lengths = torch.tensor(draw_lengths(kind, ROWS[kind]))
    segments = Segments.from_lengths(lengths, int(lengths.sum()))
    size, width = int(lengths.max()), dim // heads
    torch.manual_seed(0)
    flat = [torch.randn(len(segments.rows), dim, requires_grad=True) for _ in range(3)]
    grad = torch.randn(len(segments.rows), dim)

    def by_head(x: Tensor) -> Tensor:
        rows = pad(x.detach(), segments).view(len(lengths), size, heads, width)
        return rows.transpose(1, 2).contiguous().requires_grad_()

    wide = [by_head(x) for x in flat]
    wide_grad = by_head(grad).detach()
    setting = Setting("softmax", heads, width**-0.5)

    def ours() -> Tensor:
        out = jagged_attention(*flat, segments, setting)
        torch.autograd.grad(out, flat, grad)
        return out

    def torchs() -> Tensor:
        # Rows are causal and padded behind, so no mask of padding is needed: the faster of SDPA's ways.
        out = F.scaled_dot_product_attention(*wide, is_causal=True)
        torch.autograd.grad(out, wide, wide_grad)
        return out.transpose(1, 2).reshape(len(lengths), size, dim)

    check(ours(), torchs(), segments, 1e-4)
    return {**medians({"ours": ours, "torch": torchs}, seconds), "fill": len(grad) / (size * len(lengths))}


def kept_bytes(length: int) -> int:
    """What the STU layer keeps for its backward pass, of one row."""
    layer = STULayer(embedding_dim=64, num_heads=2, hidden_dim=32, attention_dim=32, divisor=1.0)
    segments, total = Segments.from_lengths(torch.tensor([length]), length), 0

    def note(tensor: Tensor) -> Tensor:
        nonlocal total
        total += tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        layer(torch.randn(length, 64), segments)
    return total


def kernels(seconds: float) -> list[Bar]:
    bars = []
    print(f"{'':<34}{'positions used':>16}{'ours ms':>10}{'torch ms':>10}{'ratio':>8}")
    for title, compare, goal in (("STU", compare_stu, STU_GOAL), ("softmax", compare_softmax, SOFTMAX_GOAL)):
        for kind in ROWS:
            for dim, heads in SHAPES:
                found = compare(kind, dim, heads, seconds)
                ratio = found["torch"] / found["ours"]
                name = f"{title} {kind} dim {dim} heads {heads}"
                print(
                    f"{name:<34}{found['fill']:>16.0%}{found['ours'] * 1e3:>10.2f}"
                    f"{found['torch'] * 1e3:>10.2f}{ratio:>8.1f}"
                )
                bars.append(Bar(name, ratio, goal, True))
    growth = kept_bytes(4096) / kept_bytes(512)
    print(f"kept for backward, 4,096 against 512 positions: {growth:.2f} times the bytes (8 is linear)")
    bars.append(Bar("bytes kept at 8 times the positions, 8 / growth", 8 / growth, 0.9, True))
    return bars


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.5, help="of each side of each comparison")
    parser.add_argument("--rectools", default="", metavar="PYTHON", help="of an environment with RecTools")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    print(f"{torch.get_num_threads()} threads")
    write_bars(args.json, [*kernels(args.seconds), *measure(), *compare_epochs(args.rectools)])


if __name__ == "__main__":
    main()
