"""Every ranking model on census income and KuaiRand with equal budgets, and LightGBM beside them.

    python benchmarks/ranking.py [--rows N] [--epochs N] [--seeds N] [--search N] [--data …] [--models …]
                                 [--markdown FILE] [--json FILE]

All models have the same features, batches and layer sizes (recgrad.models.sketches). The rates of the tables
and of the layers are chosen among up to four pairs by AUC on validation rows, with seed 0; then each seed
trains anew and is measured on test rows. Multi-task models learn both labels, and are measured by the first.
Times are of training alone, per seed, on one thread; parameters are those of the layers, without tables.
LightGBM (if it is installed: pip install lightgbm) has 200 trees; its number of leaves is chosen likewise.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from peers.rows import DATA, Rows, census, kuairand
from results.bars import Bar, write_bars
from torch.nn import functional as F

from recgrad.data.features.spec import FeatureSpec, Kind
from recgrad.models.base import Model
from recgrad.models.build import build_model
from recgrad.models.sketches import Fields, sketch, sketched
from recgrad.optim.sparse import Adagrad

DIM, BATCH = 16, 512
RATES = ((0.02, 0.001), (0.1, 0.001), (0.02, 0.003), (0.1, 0.003))
"""Of tables (Adagrad) and layers (Adam)."""
LEAVES = (15, 31, 63, 127)
SETS = {"census": (census, "census_income", None), "kuairand": (kuairand, "kuairand", 1)}
"""How rows are read, their folder, and the field whose rows are a group."""


@dataclass
class Split:
    """Rows to train on, to choose by and to measure on."""

    train: Rows
    valid: Rows
    test: Rows


@dataclass
class Measured:
    """What one run reaches."""

    auc: float
    grouped: float
    log_loss: float
    seconds: float
    parameters: int


def auc(scores: Any, labels: Any) -> float:
    """The share of pairs in the right order; ties count half."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    positive = labels > 0.5
    n, p = len(labels), int(positive.sum())
    return float((ranks[positive].sum() - p * (p + 1) / 2) / (p * (n - p)))


def grouped_auc(scores: Any, labels: Any, groups: Any) -> float:
    """Mean AUC of the groups that have both classes."""
    order = np.argsort(groups, kind="stable")
    ends = np.flatnonzero(np.diff(groups[order])) + 1
    parts = [part for part in np.split(order, ends) if 0 < labels[part].sum() < len(part)]
    return mean(auc(scores[part], labels[part]) for part in parts) if parts else float("nan")


def measure(probabilities: Any, rows: Rows, group: int | None, seconds: float, parameters: int) -> Measured:
    labels = next(iter(rows.labels.values()))
    p = np.clip(probabilities.astype(np.float64), 1e-7, 1 - 1e-7)
    loss = -np.mean(np.where(labels > 0.5, np.log(p), np.log1p(-p)))
    grouped = float("nan") if group is None else grouped_auc(p, labels, rows.ids[:, group])
    return Measured(auc(p, labels), grouped, float(loss), seconds, parameters)


def build(name: str, rows: Rows, seed: int) -> Model:
    fields = [f"f{i}" for i in range(len(rows.sizes))]
    # Every field of onn has a vector for each other one.
    width = 2 * (len(fields) + 1) if name == "onn" else DIM
    features = [
        FeatureSpec(field, Kind.SPARSE, num_rows=size, embedding_dim=width)
        for field, size in zip(fields, rows.sizes, strict=True)
    ]
    features.append(FeatureSpec("numbers", Kind.DENSE, value_dim=rows.numbers.shape[1]))
    labels = list(rows.labels)
    config = sketch(name, Fields(fields, ["numbers"], width, labels))
    return build_model(config, features, seed=seed, label_fields=labels)


def probabilities(model: Model, rows: Rows) -> Any:
    """Of the first label."""
    model.eval()
    found = []
    with torch.no_grad():
        for first in range(0, len(rows.ids), 4096):
            part = rows.take(np.arange(first, min(first + 4096, len(rows.ids))))
            found.append(torch.sigmoid(model(part.batch())[model.tasks[0].logits]).numpy())
    return np.concatenate(found)


def train(name: str, rows: Rows, epochs: int, seed: int, rates: tuple[float, float]) -> tuple[Model, float]:
    model = build(name, rows, seed)
    assert model.engine is not None
    dense = [parameter for _, parameter in model.dense_named_parameters()]
    optimizers: list[Any] = [Adagrad(model.engine, lr=rates[0]), torch.optim.Adam(dense, lr=rates[1])]
    rng = np.random.default_rng(seed)
    started = time.perf_counter()
    model.train()
    for _ in range(epochs):
        order = rng.permutation(len(rows.ids))
        for first in range(0, len(order) - BATCH + 1, BATCH):
            batch = rows.take(order[first : first + BATCH]).batch()
            outputs = model(batch)
            total = sum(model.own_losses(outputs).values(), torch.zeros(()))
            for task in model.tasks:
                total = total + F.binary_cross_entropy_with_logits(
                    outputs[task.logits], batch.labels[task.label_name]
                )
            for optimizer in optimizers:
                optimizer.zero_grad()
            total.backward()  # type: ignore[no-untyped-call]
            for optimizer in optimizers:
                optimizer.step()
    return model, time.perf_counter() - started


def run_model(name: str, split: Split, group: int | None, options: argparse.Namespace) -> list[Measured]:
    tried = {}
    for rates in RATES[: options.search]:
        model, _ = train(name, split.train, options.epochs, 0, rates)
        tried[rates] = auc(probabilities(model, split.valid), next(iter(split.valid.labels.values())))
    best = max(tried, key=tried.__getitem__)
    found = []
    for seed in range(options.seeds):
        model, seconds = train(name, split.train, options.epochs, seed, best)
        size = sum(parameter.numel() for _, parameter in model.dense_named_parameters())
        found.append(measure(probabilities(model, split.test), split.test, group, seconds, size))
    return found


def run_lightgbm(split: Split, group: int | None, options: argparse.Namespace) -> list[Measured]:
    import lightgbm

    def matrix(rows: Rows) -> Any:
        return np.concatenate([rows.ids.astype(np.float64), rows.numbers], axis=1)

    def fit(leaves: int, seed: int) -> Any:
        label = next(iter(split.train.labels.values()))
        settings = {"objective": "binary", "num_leaves": leaves, "verbosity": -1, "seed": seed}
        settings |= {"num_threads": 1, "bagging_fraction": 0.8, "bagging_freq": 1, "learning_rate": 0.05}
        # Fields of more than a thousand values as categories are learned by heart.
        fields = [i for i, size in enumerate(split.train.sizes) if size <= 1000]
        data = lightgbm.Dataset(matrix(split.train), label, categorical_feature=fields)
        return lightgbm.train(settings, data, num_boost_round=200)

    valid = next(iter(split.valid.labels.values()))
    tried = {n: auc(fit(n, 0).predict(matrix(split.valid)), valid) for n in LEAVES[: options.search]}
    best = max(tried, key=tried.__getitem__)
    found = []
    for seed in range(options.seeds):
        started = time.perf_counter()
        model = fit(best, seed)
        seconds = time.perf_counter() - started
        found.append(measure(model.predict(matrix(split.test)), split.test, group, seconds, 0))
    return found


def line(name: str, found: Sequence[Measured]) -> str:
    """A row of the table."""
    values = [measured.auc for measured in found]
    grouped = mean(measured.grouped for measured in found)
    cells = [
        name,
        f"{mean(values):.4f} ({min(values):.4f} – {max(values):.4f})",
        "" if np.isnan(grouped) else f"{grouped:.4f}",
        f"{mean(measured.log_loss for measured in found):.4f}",
        f"{mean(measured.seconds for measured in found):.1f}",
        f"{found[0].parameters:,}" if found[0].parameters else "",
    ]
    return f"| {' | '.join(cells)} |"


HEAD = (
    "| model | AUC | grouped AUC | log loss | seconds | parameters |\n| --- | --- | --- | --- | --- | --- |"
)


def main() -> None:
    """Train everything and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--rows", type=int, default=10_000, help="to train on; a quarter and a half beside them"
    )
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--search", type=int, default=2, help="settings that are tried, at most 4")
    parser.add_argument("--data", nargs="*", default=list(SETS), choices=list(SETS))
    parser.add_argument("--models", nargs="*", default=sketched(), choices=sketched())
    parser.add_argument("--markdown", type=Path, help="write the tables")
    parser.add_argument("--json", type=Path, help="write the bars: each model against LightGBM")
    options = parser.parse_args()
    torch.set_num_threads(1)
    lines: list[str] = []
    bars: list[Bar] = []

    def tell(text: str) -> None:
        print(text, flush=True)
        lines.append(text)
        if options.markdown:
            options.markdown.write_text("\n".join(lines) + "\n")

    for data in options.data:
        load, folder, group = SETS[data]
        if not (DATA / folder).exists():
            print(f"{data}: not in {DATA}, left out")
            continue
        n = options.rows
        rows = load(n + n // 4 + n // 2)
        ends = (n, n + n // 4, len(rows.ids))
        split = Split(*(rows.take(np.arange(a, b)) for a, b in zip((0, *ends[:2]), ends, strict=True)))
        budget = f"{options.epochs} epochs, {options.search} settings, {options.seeds} seeds"
        tell(f"\n{data}: {n:,} rows, {budget}\n\n{HEAD}")
        peer = 0.0
        try:
            found = run_lightgbm(split, group, options)
            peer = mean(measured.auc for measured in found)
            tell(line("LightGBM, 200 trees", found))
        except ImportError:
            print("lightgbm is not installed, left out")
        for name in options.models:
            found = run_model(name, split, group, options)
            tell(line(f"`{name}`", found))
            if peer:
                ratio = mean(measured.auc for measured in found) / peer
                bars.append(Bar(f"{data}, {name}: AUC over LightGBM's", ratio, 0.97, at_least=True))
    if options.json:
        write_bars(options.json, bars)


if __name__ == "__main__":
    main()
