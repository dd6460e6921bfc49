"""Speed and memory of losses and metrics against named peers on the same arrays.

    python benchmarks/metrics.py [--json FILE] [--rounds N]

Rounds are interleaved (ours, peer, ours, peer …) and medians compared; each pair is first
checked to compute the same value.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from google.protobuf import text_format
from results.bars import Bar, describe_bar, write_bars
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from recgrad.config.proto.metric_pb2 import TrainMetricConfig
from recgrad.losses.jrc_loss import JRCLoss
from recgrad.metrics import AUC, XAUC, GroupedAUC, build_train_metric

ROWS, GROUPS, BATCH = 1_000_000, 100_000, 8192


def seconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def medians(rounds: int, *functions: Callable[[], Any]) -> list[float]:
    """The median seconds of each function, called in turn `rounds` times."""
    times = [[seconds(function) for function in functions] for _ in range(rounds)]
    return [statistics.median(column) for column in zip(*times)]


def clicks() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    logits = rng.normal(-2, 1, ROWS)
    labels = (rng.random(ROWS) < 1 / (1 + np.exp(-logits))).astype(np.int64)
    return 1 / (1 + np.exp(-(logits + rng.normal(size=ROWS)))), labels, rng.integers(0, GROUPS, ROWS)


def loop_over_groups(scores: np.ndarray, labels: np.ndarray, keys: np.ndarray, groups: int) -> float:
    """Mean AUC of the first groups, one call of scikit-learn each, rows sorted by key once."""
    order = np.argsort(keys, kind="stable")
    starts = np.searchsorted(keys[order], np.arange(groups + 1))
    values = []
    for start, end in itertools.pairwise(starts):
        rows = order[start:end]
        if 0 < labels[rows].sum() < end - start:
            values.append(roc_auc_score(labels[rows], scores[rows]))
    return float(np.mean(values))


def grouped_auc(rounds: int) -> Bar:
    scores, labels, keys = clicks()
    tensors = [torch.from_numpy(column) for column in (scores, labels, keys)]
    part = GROUPS // 100
    few = keys < part
    ours = GroupedAUC()(*(column[torch.from_numpy(few)] for column in tensors)).item()
    assert abs(ours - loop_over_groups(scores[few], labels[few], keys[few], part)) < 1e-12

    def vectorised() -> None:
        metric = GroupedAUC()
        metric.update(*tensors)
        metric.compute()

    # The loop is timed on a 100th of the groups (10,000 rows) and multiplied: it is linear in them.
    fast, slow = medians(
        rounds, vectorised, lambda: loop_over_groups(scores[few], labels[few], keys[few], part)
    )
    name = "grouped_auc, 1M rows in 100k groups: speed over a loop of sklearn"
    return Bar(name, 100 * slow / fast, 50, at_least=True, note=against(fast, 100 * slow))


def exact_auc(rounds: int) -> Bar:
    scores, labels, _ = clicks()
    a, b = torch.from_numpy(scores), torch.from_numpy(labels)
    assert abs(AUC(exact=True)(a, b).item() - roc_auc_score(labels, scores)) < 1e-12

    def ours() -> None:
        metric = AUC(exact=True)
        metric.update(a, b)
        metric.compute()

    fast, slow = medians(rounds, ours, lambda: roc_auc_score(labels, scores))
    name = "exact auc, 1M rows: time over sklearn's"
    return Bar(name, fast / slow, 1, at_least=False, note=against(fast, slow))


def exact_xauc(rounds: int) -> Bar:
    rng = np.random.default_rng(1)
    labels = rng.exponential(size=ROWS)
    scores = labels + rng.normal(size=ROWS)
    a, b = torch.from_numpy(scores), torch.from_numpy(labels)
    few = 2000
    wins = (
        np.sign(scores[:few, None] - scores[:few]) == np.sign(labels[:few, None] - labels[:few])
    ).sum() - few
    assert abs(XAUC(exact=True)(a[:few], b[:few]).item() - wins / few / (few - 1)) < 1e-12

    def ours() -> None:
        metric = XAUC(exact=True)
        metric.update(a, b)
        metric.compute()

    fast, slow = medians(rounds, ours, lambda: np.argsort(scores, kind="stable"))
    name = "exact xauc, 1M rows: time over numpy's stable argsort"
    return Bar(name, fast / slow, 5, at_least=False, note=against(fast, slow))


def square_jrc(logits: Tensor, labels: Tensor, session: Tensor) -> Tensor:
    """JRC by the mask of all pairs of rows."""
    entropy = nn.functional.cross_entropy(logits, labels)
    allowed = (session[:, None] == session) & (labels[:, None] != labels)
    allowed.fill_diagonal_(True)
    contrast = -logits[:, labels].T.masked_fill(~allowed, -torch.inf).log_softmax(1).diagonal()
    return 0.5 * entropy + 0.5 * contrast.mean()


def peak_bytes(function: Callable[[], Any]) -> int:
    """The most memory that the process grew by while the function ran."""
    process, stop, peak = psutil.Process(), threading.Event(), [0]
    before = process.memory_info().rss

    def watch() -> None:
        while not stop.is_set():
            peak[0] = max(peak[0], process.memory_info().rss)
            time.sleep(0.0005)

    watcher = threading.Thread(target=watch)
    watcher.start()
    function()
    stop.set()
    watcher.join()
    return max(0, max(peak[0], process.memory_info().rss) - before)


def allocated_bytes(function: Callable[[], Any]) -> int:
    """All bytes that torch allocates on the CPU while the function runs: a bound of its peak."""
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        function()
    return sum(event.self_cpu_memory_usage for event in profile.events() if event.self_cpu_memory_usage > 0)


def jrc_memory(_: int) -> Bar:
    torch.manual_seed(0)
    logits, labels = torch.randn(BATCH, 2), torch.randint(0, 2, (BATCH,))
    session, loss = torch.randint(0, BATCH // 8, (BATCH,)), JRCLoss()
    assert abs(loss(logits, labels, session=session) - square_jrc(logits, labels, session)) < 1e-5

    def trained(function: Callable[[Tensor], Tensor]) -> None:
        function(logits.clone().requires_grad_()).backward()

    ours = allocated_bytes(lambda: trained(lambda z: loss(z, labels, session=session)))
    # Ours by everything it ever allocates, the square form by what it holds at its peak.
    theirs = peak_bytes(lambda: trained(lambda z: square_jrc(z, labels, session)))
    name = f"jrc_loss, batch {BATCH}, with backward: memory over the B² form"
    note = f"{ours / 1e6:.1f} MB against {theirs / 1e6:.0f} MB"
    return Bar(name, ours / theirs, 0.05, at_least=False, note=note)


def dense_step() -> Callable[[], None]:
    """A training step shaped like DeepFM's: 39 fields of 16, MLP 512-256-128, batch 8192."""
    torch.manual_seed(0)
    embeddings = torch.randn(BATCH, 39, 16, requires_grad=True)
    labels = torch.randint(0, 2, (BATCH,)).float()
    sizes = [39 * 16, 512, 256, 128]
    layers = [part for a, b in itertools.pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
    mlp = nn.Sequential(*layers, nn.Linear(128, 1))
    optimizer = torch.optim.Adam(mlp.parameters())

    def step() -> None:
        optimizer.zero_grad()
        fm = 0.5 * (embeddings.sum(1).square() - embeddings.square().sum(1)).sum(1)
        logits = mlp(embeddings.flatten(1)).squeeze(1) + 1e-3 * fm
        nn.functional.binary_cross_entropy_with_logits(logits, labels).backward()
        optimizer.step()

    return step


def train_metrics(rounds: int) -> Bar:
    metric = build_train_metric(text_format.Parse("auc {}", TrainMetricConfig()))
    probs, labels = torch.rand(BATCH), torch.randint(0, 2, (BATCH,))
    plain = AUC()
    for _ in range(100):
        metric.update(probs, labels)
        plain.update(probs, labels)
    assert metric.compute() == plain.compute()
    step = dense_step()
    step()

    def hundred() -> None:
        for _ in range(100):
            metric.update(probs, labels)

    update, whole = medians(max(rounds, 5), hundred, step)
    name = "train auc, batch 8192: update over a DeepFM step"
    return Bar(name, update / 100 / whole, 0.01, at_least=False, note=against(update / 100, whole))


def against(ours: float, peer: float) -> str:
    """Seconds of both."""
    return f"{1e3 * ours:.2f} ms against {1e3 * peer:.2f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of each pair (default: %(default)s)")
    args = parser.parse_args()
    bars = []
    for measure in (grouped_auc, exact_auc, exact_xauc, jrc_memory, train_metrics):
        bars.append(measure(args.rounds))
        print(describe_bar(bars[-1]), flush=True)
    write_bars(args.json, bars)


if __name__ == "__main__":
    main()
