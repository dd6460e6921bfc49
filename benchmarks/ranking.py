"""Every ranking model on census income and KuaiRand with equal budgets, LightGBM and FuxiCTR beside them.

    python benchmarks/ranking.py [--rows N] [--seeds N] [--search N] [--data …] [--models …] [--runs FILE]
                                 [--seconds N] [--markdown FILE] [--json FILE]

All models of Recgrad have the same features, batches and layer sizes (recgrad.models.sketches), and the same
number of steps on both sets: census rows are read twice, so there are half as many of them as --rows says.
Settings, which are the rates of tables and layers (of all parameters for FuxiCTR, the number of leaves for
LightGBM), are chosen by AUC on validation rows with seed 0, among the same number for everyone; other seeds
take what was chosen. Validation rows of KuaiRand are of the last two days of its training file; test rows
are of the official test files. Models of several tasks learn both labels and are measured by the first; the
second label of models of a chain of events (esmm, aitm) is both labels at once. Times are CPU seconds of
training alone, on one thread; parameters are those of the layers, without tables. Finished runs are kept in
--runs, a file of JSON lines: a second call trains only what is missing there, one seed of all models first,
and --seconds 0 only writes the tables.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from peers import fuxictr_models
from peers.ranking_rows import Split, census, kuairand
from peers.rows import DATA, Rows
from results.bars import Bar, write_bars
from results.ranking_runs import Run, Runs
from torch.nn import functional as F

from recgrad.data.features.spec import FeatureSpec, Kind
from recgrad.models.base import Model
from recgrad.models.build import build_model
from recgrad.models.sketches import Fields, sketch, sketched
from recgrad.optim.sparse import Adagrad

DIM, BATCH = 16, 256
RATES = ((0.05, 0.001), (0.1, 0.003), (0.1, 0.001), (0.02, 0.001))
"""Of tables (Adagrad) and layers (Adam)."""
LEAVES = (15, 31, 63, 127)
ADAM = (0.001, 0.003, 0.01, 0.0005)
SETS = {"census": (census, "census_income", 2), "kuairand": (kuairand, "kuairand", 1)}
"""How rows are read, their folder, and epochs."""
CHAINS = ("esmm", "aitm")
"""Models of events each of which needs the one before."""
DIN = "multi_tower_din"
"""The one model that needs a history: it has one feature more than the others."""


Scores = tuple[Any, Any, float, int]
"""Probabilities of validation and of test rows, seconds, parameters."""


@dataclass(frozen=True)
class Entrant:
    """A line of the table: its settings by how they are written, and how one is trained."""

    name: str
    settings: dict[str, Any]
    train: Callable[[Any, Split, int, int], Scores]


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
    return mean(auc(scores[part], labels[part]) for part in parts)


def first_label(rows: Rows) -> Any:
    return next(iter(rows.labels.values()))


def batches(rows: Rows, epochs: int, seed: int) -> Iterator[Rows]:
    """The same for every model that is trained by steps."""
    rng = np.random.default_rng(seed)
    for _ in range(epochs):
        order = rng.permutation(len(rows.ids))
        for first in range(0, len(order) - BATCH + 1, BATCH):
            yield rows.take(order[first : first + BATCH])


def pieces(rows: Rows) -> Iterator[Rows]:
    for first in range(0, len(rows.ids), 4096):
        yield rows.take(np.arange(first, min(first + 4096, len(rows.ids))))


def build(name: str, rows: Rows, seed: int) -> Model:
    fields = [f"f{i}" for i in range(len(rows.sizes))]
    # Every field of onn has a vector for each other one.
    width = 2 * (len(fields) + 1) if name == "onn" else DIM
    features = [
        FeatureSpec(field, Kind.SPARSE, num_rows=size, embedding_dim=width, embedding_name=field)
        for field, size in zip(fields, rows.sizes, strict=True)
    ]
    features.append(FeatureSpec("numbers", Kind.DENSE, value_dim=rows.numbers.shape[1]))
    labels = list(rows.labels)
    history = None
    if name == DIN:
        history = ("f0", "hist__f0")
        shared: Any = {"num_rows": rows.sizes[0], "embedding_dim": width, "embedding_name": "f0"}
        features.append(FeatureSpec("hist__f0", Kind.SPARSE, True, "hist", **shared))
    config = sketch(name, Fields(fields, ["numbers"], width, labels, history))
    return build_model(config, features, seed=seed, label_fields=labels)


def chained(rows: Rows) -> Rows:
    """The second event only where the first is: what models of a chain of events assume."""
    (first, label), (second, other) = rows.labels.items()
    return replace(rows, labels={first: label, second: label * other})


def train_recgrad(name: str, rates: tuple[float, float], split: Split, epochs: int, seed: int) -> Scores:
    if name in CHAINS:
        split = replace(split, train=chained(split.train))
    model = build(name, split.train, seed)
    assert model.engine is not None
    dense = [parameter for _, parameter in model.dense_named_parameters()]
    adam = torch.optim.Adam(dense, lr=rates[1], fused=True)  # as adam_optimizer is
    optimizers: list[Any] = [Adagrad(model.engine, lr=rates[0]), adam]
    started = time.process_time()
    model.train()
    for rows in batches(split.train, epochs, seed):
        batch = rows.batch()
        outputs = model(batch)
        total = sum(model.own_losses(outputs).values(), torch.zeros(()))
        for task in model.tasks:
            logits, label = outputs[task.logits], batch.labels[task.label_name]
            total = total + F.binary_cross_entropy_with_logits(logits, label)
        for optimizer in optimizers:
            optimizer.zero_grad()
        total.backward()  # type: ignore[no-untyped-call]
        for optimizer in optimizers:
            optimizer.step()
    seconds = time.process_time() - started
    model.eval()

    def scores(rows: Rows) -> Any:
        logits = model.tasks[0].logits
        with torch.no_grad():
            found = [torch.sigmoid(model(part.batch())[logits]) for part in pieces(rows)]
        return torch.cat(found).numpy()

    return scores(split.valid), scores(split.test), seconds, sum(weights.numel() for weights in dense)


def train_fuxictr(name: str, rate: float, split: Split, epochs: int, seed: int) -> Scores:
    model = fuxictr_models.build(name, split.train, DIM, rate, seed)
    started = time.process_time()
    model.train()
    for rows in batches(split.train, epochs, seed):
        model.train_step(fuxictr_models.inputs(rows))
    seconds = time.process_time() - started
    model.eval()

    def scores(rows: Rows) -> Any:
        with torch.no_grad():
            found = [model(fuxictr_models.inputs(part))["y_pred"].reshape(-1) for part in pieces(rows)]
        return torch.cat(found).numpy()

    tables = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Embedding))
    layers = sum(weights.numel() for weights in model.parameters()) - tables
    return scores(split.valid), scores(split.test), seconds, layers


def train_lightgbm(leaves: int, split: Split, epochs: int, seed: int) -> Scores:
    """200 trees; it has no epochs."""
    import lightgbm

    def matrix(rows: Rows) -> Any:
        return np.concatenate([rows.ids.astype(np.float64), rows.numbers], axis=1)

    settings = {"objective": "binary", "num_leaves": leaves, "verbosity": -1, "seed": seed}
    settings |= {"num_threads": 1, "bagging_fraction": 0.8, "bagging_freq": 1, "learning_rate": 0.05}
    # Fields of more than a thousand values as categories are learned by heart.
    fields = [i for i, size in enumerate(split.train.sizes) if size <= 1000]
    started = time.process_time()
    data = lightgbm.Dataset(matrix(split.train), first_label(split.train), categorical_feature=fields)
    model = lightgbm.train(settings, data, num_boost_round=200)
    seconds = time.process_time() - started
    return model.predict(matrix(split.valid)), model.predict(matrix(split.test)), seconds, 0


def entrants(options: argparse.Namespace) -> list[Entrant]:
    """LightGBM, FuxiCTR's and ours; what is not installed is left out with a word."""
    found = []
    wanted = set(options.models)

    def add(name: str, settings: Sequence[Any], train: Callable[..., Scores]) -> None:
        if not wanted or name in wanted:
            found.append(Entrant(name, {str(one): one for one in settings[: options.search]}, train))

    if installed("lightgbm"):
        add("LightGBM", LEAVES, train_lightgbm)
    for name in sketched():
        add(name, RATES, lambda *rest, name=name: train_recgrad(name, *rest))
    if installed("fuxictr"):
        for name in fuxictr_models.NAMES:
            add(f"FuxiCTR {name}", ADAM, lambda *rest, name=name: train_fuxictr(name, *rest))
    return found


def installed(package: str) -> bool:
    try:
        __import__(package)
    except ImportError:
        print(f"{package} is not installed, left out")
        return False
    return True


def measure(data: str, entrant: Entrant, setting: str, split: Split, seed: int) -> Run:
    """Train once, and measure on validation and test rows."""
    valid, test, seconds, parameters = entrant.train(entrant.settings[setting], split, SETS[data][2], seed)
    labels = first_label(split.test)
    p = np.clip(np.asarray(test, np.float64), 1e-7, 1 - 1e-7)
    loss = -np.mean(np.where(labels > 0.5, np.log(p), np.log1p(-p)))
    grouped = None if split.groups is None else grouped_auc(p, labels, split.groups)
    reached = (auc(valid, first_label(split.valid)), auc(p, labels), grouped, float(loss))
    rows = len(split.train.ids)
    return Run(data, rows, entrant.name, setting, seed, *reached, seconds, parameters)


def rows_of(data: str, options: argparse.Namespace) -> int:
    """Rows to train on: those of a set that is read twice are half as many."""
    return int(options.rows) // SETS[data][2]


def warm_up(split: Split) -> None:
    """One batch of models with tables of all widths, so that no run is charged for compiling kernels."""
    few = np.arange(BATCH)
    tiny = replace(split, train=split.train.take(few), valid=split.valid.take(few), test=split.test.take(few))
    for name in ("deepfm", "onn", *([DIN] if split.train.history is not None else [])):
        train_recgrad(name, RATES[0], tiny, 1, 0)


def train_all(runs: Runs, splits: dict[str, Split], every: list[Entrant], options: Any) -> None:
    """What is missing: first one seed of all models on all sets, then the others."""
    until = time.monotonic() + options.seconds
    for split in splits.values():
        warm_up(split)
    for seed in range(options.seeds):
        for data, split in splits.items():
            for entrant in every:
                if entrant.name == DIN and split.train.history is None:
                    continue
                for setting in runs.missing(
                    data, rows_of(data, options), entrant.name, list(entrant.settings), seed
                ):
                    if time.monotonic() > until:
                        print("the time is over; the same call trains what is missing")
                        return
                    run = measure(data, entrant, setting, split, seed)
                    runs.add(run)
                    told = f"{data} {entrant.name} {setting} seed {seed}"
                    print(f"{told}: {run.auc:.4f} ({run.seconds:.1f} s)", flush=True)


HEAD = (
    "| model | setting | seeds | AUC | grouped AUC | log loss | CPU seconds | parameters |\n"
    "| --- | --- | --- | --- | --- | --- | --- | --- |"
)


def line(name: str, found: Sequence[Run]) -> str:
    """A row of the table."""
    values = [run.auc for run in found]
    spread = f" ({min(values):.4f} – {max(values):.4f})" if len(values) > 1 else ""
    grouped = [run.grouped for run in found if run.grouped is not None]
    cells = [
        name if " " in name or name[0].isupper() else f"`{name}`",
        found[0].setting.strip("()"),
        str(len(found)),
        f"{mean(values):.4f}{spread}",
        f"{mean(grouped):.4f}" if grouped else "",
        f"{mean(run.log_loss for run in found):.4f}",
        f"{mean(run.seconds for run in found):.1f}",
        f"{found[0].parameters:,}" if found[0].parameters else "",
    ]
    return f"| {' | '.join(cells)} |"


def tables(runs: Runs, every: list[Entrant], options: argparse.Namespace) -> tuple[str, list[Bar]]:
    """The tables, the best model first, and each model's AUC over LightGBM's."""
    text, bars = [], []
    for data in options.data:
        rows = rows_of(data, options)
        finals = {
            entrant.name: runs.final(data, rows, entrant.name, list(entrant.settings)) for entrant in every
        }
        finals = {name: found for name, found in finals.items() if found}
        means = {name: mean(run.auc for run in found) for name, found in finals.items()}
        order = sorted(means, key=means.__getitem__, reverse=True)
        budget = f"{rows:,} rows, {SETS[data][2]} epoch(s) of batches of {BATCH}"
        text += [f"{data}: {budget}, {options.search} settings", "", HEAD]
        text += [*(line(name, finals[name]) for name in order), ""]
        peer = means.pop("LightGBM", None)
        if peer:
            goal = 0.97 if data == "census" else 1.0
            for name, value in means.items():
                bars.append(Bar(f"{data}, {name}: AUC over LightGBM's", value / peer, goal, at_least=True))
    return "\n".join(text), bars


def main() -> None:
    """Train what is missing and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000, help="to train on, half of them twice on census")
    parser.add_argument("--valid", type=int, default=15_000, help="to choose by")
    parser.add_argument("--test", type=int, default=50_000, help="to measure on")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--search", type=int, default=2, help="settings that are tried, at most 4")
    parser.add_argument("--data", nargs="*", default=list(SETS), choices=list(SETS))
    parser.add_argument("--models", nargs="*", default=[], help="names as the table has them; all by default")
    parser.add_argument("--runs", type=Path, help="finished runs, kept and not trained again")
    parser.add_argument("--seconds", type=float, default=270.0, help="begin no further run after them")
    parser.add_argument("--markdown", type=Path, help="write the tables")
    parser.add_argument("--json", type=Path, help="write the bars: each model against LightGBM")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.data = [data for data in options.data if (DATA / SETS[data][1]).exists()]
    runs, every = Runs(options.runs), entrants(options)
    if options.seconds > 0:
        splits = {
            name: SETS[name][0](rows_of(name, options), options.valid, options.test) for name in options.data
        }
        train_all(runs, splits, every, options)
    text, bars = tables(runs, every, options)
    print(f"\n{text}")
    if options.markdown:
        options.markdown.write_text(text)
    if options.json:
        write_bars(options.json, bars)


if __name__ == "__main__":
    main()
