"""How good recommendations are on gowalla: two towers of the example against BPR and ALS of `implicit`.

    python benchmarks/gowalla.py [--json FILE] [--whole] [--epochs N] [--seeds N] [--valid] [--edit JSON]

Trained on train + valid, ranked over all places that a user has not visited, Recall@20 and NDCG@20 over
the users of test. Each contender runs in a process of its own, one thread, so that its time and its peak
memory are its own. By default the towers train for a short while, which is far from their best; --whole
trains three seeds as the example says. --valid trains on train alone and ranks for valid: settings are
chosen there. Needs gowalla in ../shared/data, and `pip install implicit`.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import runpy
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from results.bars import Bar, describe_bar, write_bars

ROOT = Path(__file__).resolve().parents[1]
GOWALLA = ROOT / "../shared/data/gowalla"
K, DIM = 20, 64
GOALS = {"recall": 0.1754, "ndcg": 0.1473}
"""What two towers (YoutubeDNN) are published with."""
PUBLISHED = {
    "YoutubeDNN": (0.1754, 0.1473),
    "LightGCN": (0.1830, 0.1554),
    "SimpleX": (0.1872, 0.1557),
}
"""Recall and NDCG on the same files, from He et al. 2020 (LightGCN) and Mao et al. 2021, not run here."""


def towers(folder: Path, seed: int, epochs: int, edit: str) -> dict[str, float]:
    """Recall and NDCG of the example's two towers."""
    import recgrad
    from recgrad.config import load_config

    os.chdir(folder)
    config = recgrad.edit_config(load_config(ROOT / "examples/gowalla_two_towers.config"), json.loads(edit))
    config.train_config.seed, config.model_dir = seed, str(folder / f"model-{seed}")
    if epochs:
        ratio = epochs / config.train_config.num_epochs
        config.train_config.num_epochs = epochs
        sparse = config.train_config.sparse_optimizer
        for part in (sparse, *sparse.part_optimizers):
            schedule = part.linear_decay_learning_rate
            schedule.decay_size = max(1, round(schedule.decay_size * ratio))
    metrics = recgrad.train(config).metrics
    return {name: metrics[f"catalogue_{name}@{K}"] for name in GOALS}


def implicit_model(folder: Path, kind: str) -> dict[str, float]:
    """Recall and NDCG of a model of `implicit`."""
    import pyarrow.parquet as pq
    from implicit.als import AlternatingLeastSquares
    from implicit.bpr import BayesianPersonalizedRanking
    from scipy.sparse import csr_matrix

    from recgrad.retrieval.exact import PackedVectors
    from recgrad.retrieval.lists import ItemSets
    from recgrad.retrieval.measures import CatalogueMeasures

    def pairs(name: str) -> tuple[np.ndarray, np.ndarray]:
        table = pq.read_table(folder / f"data/gowalla/{name}.parquet")
        lists = table["item_id"].to_pylist()
        return np.repeat(table["user_id"].to_numpy(), [len(own) for own in lists]), np.concatenate(lists)

    (users, items), (asking, wanted) = pairs("train"), pairs("test")
    shape = 1 + max(users.max(), asking.max()), 1 + max(items.max(), wanted.max())
    if kind == "ALS":
        model: Any = AlternatingLeastSquares(
            factors=DIM, regularization=0.05, alpha=10, num_threads=1, random_state=0
        )
    else:
        model = BayesianPersonalizedRanking(
            factors=DIM,
            learning_rate=0.05,
            regularization=0.005,
            iterations=100,
            num_threads=1,
            random_state=0,
        )
    model.fit(csr_matrix((np.ones(len(users), np.float32), (users, items)), shape), show_progress=False)
    packed = PackedVectors(np.ascontiguousarray(model.item_factors, np.float32))
    seen, relevant = ItemSets.of(users, items, shape[0]), ItemSets.of(asking, wanted, shape[0])
    found = packed.search(np.ascontiguousarray(model.user_factors, np.float32), K, banned=seen)
    measures = CatalogueMeasures([K], shape[1], np.bincount(items, minlength=shape[1]))
    measures.update(found.items, relevant, np.zeros(shape[0], np.int64))
    values = measures.compute()
    return {name: values[f"{name}@{K}"] for name in GOALS}


def write_tables(folder: Path, valid: bool) -> None:
    """The example's tables: of train + valid and test, or of train and valid."""
    source = GOWALLA
    if valid:
        source = folder / "source"
        source.mkdir()
        for name, text in (("train", "train"), ("valid", ""), ("test", "valid")):
            (source / f"{name}.txt").write_text((GOWALLA / f"{text}.txt").read_text() if text else "")
    runpy.run_path(str(ROOT / "examples/gowalla.py"))["main"](str(source), str(folder / "data/gowalla"))


def contender(folder: Path, name: str, *arguments: object) -> dict[str, float]:
    """What a process of its own finds, with its seconds and the megabytes of its peak."""
    line = [sys.executable, __file__, "--run", name, str(folder), *map(str, arguments)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **threads})
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    shown = "  ".join(f"{metric}@{K} {found[metric]:.4f}" for metric in GOALS)
    cost = f"{found['seconds']:7.1f} s  {found['megabytes']:6.0f} MB"
    print(f"{' '.join(map(str, (name, *arguments[:1]))):<16} {shown}  {cost}", flush=True)
    return found


def run(name: str, folder: Path, arguments: list[str]) -> None:
    """Of a contender's process: its numbers as the last line."""
    start = time.perf_counter()
    if name == "towers":
        found = towers(folder, int(arguments[0]), int(arguments[1]), arguments[2])
    else:
        found = implicit_model(folder, name)
    found["seconds"] = time.perf_counter() - start
    found["megabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(found))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results")
    parser.add_argument("--whole", action="store_true", help="three seeds, all epochs of the example")
    parser.add_argument(
        "--epochs", type=int, default=2, help="of the towers without --whole (default: %(default)s)"
    )
    parser.add_argument(
        "--seeds", type=int, default=1, help="of the towers without --whole (default: %(default)s)"
    )
    parser.add_argument("--valid", action="store_true", help="train on train alone, rank for valid")
    parser.add_argument("--edit", default="{}", metavar="JSON", help="changes to the example's config")
    parser.add_argument("--run", nargs="+", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.run:
        run(args.run[0], Path(args.run[1]), args.run[2:])
        return
    if not GOWALLA.exists():
        print("gowalla is not in ../shared/data; nothing to compare")
        write_bars(args.json, [])
        return
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        write_tables(folder, args.valid)
        epochs, seeds = (0, 3) if args.whole else (args.epochs, args.seeds)
        ours = [contender(folder, "towers", seed, epochs, args.edit) for seed in range(seeds)]
        for name in ("BPR", "ALS") if find_spec("implicit") else ():
            contender(folder, name)
    if args.valid:
        return
    for name, values in PUBLISHED.items():
        shown = "  ".join(f"{metric}@{K} {value:.4f}" for metric, value in zip(GOALS, values, strict=True))
        print(f"{name:<16} {shown}  published", flush=True)
    bars = []
    for name, goal in GOALS.items():
        mean = statistics.fmean(found[name] for found in ours)
        note = (
            f"{mean:.4f} against {goal}, mean of {seeds} seeds{f', {epochs} epochs only' if epochs else ''}"
        )
        # A few epochs show that it runs, and say nothing of how good it becomes.
        ratio = mean / goal if args.whole else 0.0
        note = note if args.whole else f"not measured without --whole ({note})"
        bars.append(Bar(f"{name}@{K} on gowalla over that of YoutubeDNN", ratio, 1, at_least=True, note=note))
    for bar in bars:
        print(describe_bar(bar), flush=True)
    write_bars(args.json, bars)


if __name__ == "__main__":
    main()
