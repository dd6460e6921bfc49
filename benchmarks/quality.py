"""AUC of Recgrad beside plain PyTorch: the same models, batches and initial values, lazy and dense Adam.

    python benchmarks/quality.py [--rows N] [--epochs N] [--seeds N] [--data …] [--models …] [--json FILE]

Every model is trained four times: by Recgrad with `lazy: true` and `lazy: false`, and in plain PyTorch
(benchmarks/peers/plain.py) by torch.optim.SparseAdam, which is lazy, and by torch.optim.Adam. The first
forward pass of both must agree. Each line has the AUC on rows that were not trained on, epoch by epoch, as
means over the seeds; the bars compare the last epoch of Recgrad with torch's of the same kind. Then Recgrad
trains from other initial values: normal with deviation 0.01 instead of uniform between ±1/√rows, the default.
Data sets that are not there are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from peers.plain import PlainDCN, PlainDeepFM, PlainDIN, PlainMMoE, dense_tensors
from peers.rows import DATA, Rows, census, kuairand, synthetic
from results.bars import Bar, describe_bar, write_bars
from torch import Tensor, nn
from torch.nn import functional as F

from recgrad.data.features.spec import FeatureSpec, Kind
from recgrad.models.base import MODELS, Model
from recgrad.models.group_plan import FeatureGroup
from recgrad.models.tasks import TaskSpec
from recgrad.optim.sparse import Adam

DIM, BATCH, LR, GOAL = 16, 512, 0.002, 0.0005
SETS: dict[str, tuple[Callable[[int], Rows], str]] = {
    "synthetic": (synthetic, ""),
    "census": (census, "census_income"),
    "kuairand": (kuairand, "kuairand"),
}
PLAIN = {"deepfm": PlainDeepFM, "dcn_v2": PlainDCN, "multi_tower_din": PlainDIN, "mmoe": PlainMMoE}
DEEP = {"hidden_units": [64, 32]}
SMALL = {"hidden_units": [32]}
PARAMS: dict[str, dict[str, Any]] = {
    "deepfm": {"deep": DEEP},
    "dcn_v2": {"cross": {"cross_num": 2, "low_rank": 16}, "deep": DEEP, "final": SMALL},
    "multi_tower_din": {
        "towers": [{"input": "deep", "mlp": DEEP}],
        "din_towers": [{"input": "seq", "attn_mlp": SMALL}],
        "final": SMALL,
    },
    "mmoe": {"expert_mlp": DEEP, "num_expert": 3, "towers": [{"mlp": {"hidden_units": [16]}}] * 2},
}
NORMAL = "nn.init.normal_,mean=0,std=0.01"


@dataclass
class Task:
    """Rows to train on and to evaluate on, and a model for them."""

    name: str
    train: Rows
    test: Rows

    @property
    def labels(self) -> list[str]:
        return list(self.train.labels)[: 2 if self.name == "mmoe" else 1]

    def ours(self, seed: int, init_fn: str | None = None) -> Model:
        """Recgrad's model."""
        fields = [f"f{i}" for i in range(len(self.train.sizes))]
        sparse: dict[str, Any] = {"embedding_dim": DIM, "init_fn": init_fn}
        features = [
            FeatureSpec(name, Kind.SPARSE, num_rows=size, embedding_name=f"{name}_table", **sparse)
            for name, size in zip(fields, self.train.sizes, strict=True)
        ]
        features.append(FeatureSpec("numbers", Kind.DENSE, value_dim=self.train.numbers.shape[1]))
        everything = [*fields, "numbers"]
        groups = {
            "deepfm": [("wide", fields, "WIDE"), ("fm", fields, "DEEP"), ("deep", everything, "DEEP")],
            "multi_tower_din": [("deep", everything, "DEEP"), ("seq", ["f0", "hist__f0"], "SEQUENCE")],
        }.get(self.name, [("all", everything, "DEEP")])
        if self.name == "multi_tower_din":
            size = self.train.sizes[0]
            features.append(
                FeatureSpec(
                    "hist__f0", Kind.SPARSE, True, "hist", num_rows=size, embedding_name="f0_table", **sparse
                )
            )
        tasks = [TaskSpec(name if len(self.labels) > 1 else "", name) for name in self.labels]
        options: dict[str, Any] = {"wide_init_fn": init_fn, "seed": seed, **PARAMS[self.name]}
        made: Model = MODELS[self.name](
            features, [FeatureGroup(*group) for group in groups], tasks=tasks, **options
        )
        return made

    def plain(self, ours: Model, *, sparse: bool) -> nn.Module:
        """The model in plain PyTorch with the weights of ours."""
        model = PLAIN[self.name](self.train.sizes, self.train.numbers.shape[1], DIM, sparse=sparse)
        assert ours.engine is not None
        with torch.no_grad():
            for kind in ("tables", "wide"):
                for i, table in enumerate(getattr(model, kind, ())):
                    name = f"f{i}_table" + ("_wide" if kind == "wide" else "")
                    rows = np.arange(self.train.sizes[i])
                    table.weight.copy_(torch.from_numpy(ours.engine.tables[name].initial(rows)))  # type: ignore[operator]
            layers = [p for n, p in model.named_parameters() if not n.startswith(("tables", "wide"))]
            for layer, own in zip(_ordered(self.name, model, layers), dense_tensors(ours), strict=True):
                layer.copy_(own)
        return model


def _ordered(name: str, model: Any, layers: list[nn.Parameter]) -> list[nn.Parameter]:
    """The dense parameters of a plain model in the order of Recgrad's."""
    if name != "mmoe":
        return layers
    gates = [gate.weight for gate in model.gates] + [gate.bias for gate in model.gates]
    experts = list(model.experts.parameters())
    return experts + gates + list(model.towers.parameters())


def inputs(rows: Rows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ids, numbers, histories and their lengths, as plain models read them."""
    count = len(rows.ids)
    history = np.zeros((count, 1), np.int64) if rows.history is None else rows.history
    lengths = np.zeros(count, np.int64) if rows.lengths is None else rows.lengths
    arrays = (rows.ids, rows.numbers, history, lengths)
    return tuple(torch.from_numpy(np.ascontiguousarray(a)) for a in arrays)  # type: ignore[return-value]


def logits(model: Any, rows: Rows) -> Tensor:
    """[rows, labels] of either model."""
    if isinstance(model, Model):
        found = model(rows.batch())
        parts = [value for key, value in found.items() if key.startswith("logits")]
        return torch.stack([part.reshape(-1) for part in parts], dim=1)
    return model(*inputs(rows))  # type: ignore[no-any-return]


def auc(scores: np.ndarray[Any, Any], labels: np.ndarray[Any, Any]) -> float:
    """The share of pairs in the right order; ties count half."""
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    positive = labels > 0.5
    n, p = len(labels), int(positive.sum())
    return float((ranks[positive].sum() - p * (p + 1) / 2) / (p * (n - p)))


def evaluate(model: Any, task: Task) -> float:
    """Mean AUC over the labels."""
    with torch.no_grad():
        scores = logits(model, task.test).numpy()
    return mean(auc(scores[:, i], task.test.labels[name]) for i, name in enumerate(task.labels))


def train(model: Any, optimizers: list[Any], task: Task, epochs: int, seed: int) -> list[float]:
    """AUC after each epoch."""
    rng, found = np.random.default_rng(seed), []
    for _ in range(epochs):
        order = rng.permutation(len(task.train.ids))
        for first in range(0, len(order) - BATCH + 1, BATCH):
            rows = task.train.take(order[first : first + BATCH])
            labels = torch.from_numpy(np.stack([rows.labels[name] for name in task.labels], axis=1))
            loss = F.binary_cross_entropy_with_logits(logits(model, rows), labels) * len(task.labels)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            for optimizer in optimizers:
                optimizer.step()
        found.append(evaluate(model, task))
    return found


def run_ours(task: Task, epochs: int, seed: int, *, lazy: bool, init_fn: str | None = None) -> list[float]:
    model = task.ours(seed, init_fn)
    dense = [p for name, p in model.named_parameters() if not name.startswith("engine")]
    return train(
        model, [torch.optim.Adam(dense, lr=LR), Adam(model.engine, lr=LR, lazy=lazy)], task, epochs, seed
    )


def run_torch(task: Task, epochs: int, seed: int, *, lazy: bool) -> list[float]:
    ours = task.ours(seed)
    model = task.plain(ours, sparse=lazy)
    few = task.test.take(np.arange(64))
    with torch.no_grad():
        torch.testing.assert_close(logits(model, few), logits(ours, few), rtol=1e-4, atol=1e-5)
    tables = [p for name, p in model.named_parameters() if name.startswith(("tables", "wide"))]
    layers = [p for name, p in model.named_parameters() if not name.startswith(("tables", "wide"))]
    if lazy:
        optimizers: list[Any] = [torch.optim.Adam(layers, lr=LR), torch.optim.SparseAdam(tables, lr=LR)]
    else:
        optimizers = [torch.optim.Adam([*layers, *tables], lr=LR)]
    return train(model, optimizers, task, epochs, seed)


def compare(task: Task, label: str, options: argparse.Namespace) -> list[Bar]:
    """Train one model in all ways, print, and give the bars."""
    runs: dict[str, Callable[[int], list[float]]] = {
        "lazy, Recgrad": lambda seed: run_ours(task, options.epochs, seed, lazy=True),
        "lazy, torch": lambda seed: run_torch(task, options.epochs, seed, lazy=True),
        "dense, Recgrad": lambda seed: run_ours(task, options.epochs, seed, lazy=False),
        "dense, torch": lambda seed: run_torch(task, options.epochs, seed, lazy=False),
        "dense, normal(0, .01)": lambda seed: run_ours(
            task, options.epochs, seed, lazy=False, init_fn=NORMAL
        ),
    }
    found = {name: np.array([run(seed) for seed in range(options.seeds)]) for name, run in runs.items()}
    for name, by_seed in found.items():
        epochs = "  ".join(f"{value:.4f}" for value in by_seed.mean(0))
        print(f"  {label:26} {name:22} {epochs}   ± {by_seed[:, -1].std():.4f}", flush=True)
    bars = []
    for kind in ("lazy", "dense"):
        apart = abs(float((found[f"{kind}, Recgrad"] - found[f"{kind}, torch"])[:, -1].mean()))
        bars.append(Bar(f"{label}, {kind}: AUC apart from torch", apart, GOAL, at_least=False, note=""))
        print(describe_bar(bars[-1]), flush=True)
    return bars


def main() -> None:
    """Compare everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=20_000, help="to train on; half as many are evaluated")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data", nargs="*", default=list(SETS), choices=list(SETS))
    parser.add_argument("--models", nargs="*", default=list(PLAIN), choices=list(PLAIN))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    bars: list[Bar] = []
    for name in options.data:
        load, folder = SETS[name]
        if folder and not (DATA / folder).exists():
            print(f"{name}: not in ../shared/data, left out")
            continue
        rows = load(options.rows + options.rows // 2)
        half = [rows.take(np.arange(options.rows)), rows.take(np.arange(options.rows, len(rows.ids)))]
        for model in options.models:
            if model == "multi_tower_din" and rows.history is None:
                continue
            bars += compare(Task(model, *half), f"{name}, {model}", options)
    if options.json:
        write_bars(options.json, bars)


if __name__ == "__main__":
    main()
