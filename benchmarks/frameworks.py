"""Training DeepFM: Recgrad's whole loop beside FuxiCTR and DeepCTR-Torch as pip installs them.

    python benchmarks/frameworks.py [--json FILE] [--rounds N] [--only criteo criteo-10m even even-10m]

All three train one network: 26 ids of dim 16 with a weight each, the factorization machine over their
vectors, an MLP 512-256-128 over these and 13 numbers, the sum of the three; batches of 8192. Tables are of
two shapes. `criteo`: as many ids as the 26 columns of Criteo's data set have (3 to 10 million), the largest
five cut so that all tables together have 1 or 10 million rows, ids with Zipf's frequencies (exponent 1.1).
`even`: 26 tables of equal size, 10,000 rows each or 10 million together, whose ids hardly repeat in a batch;
the last is timed when asked for, since all four take six minutes.
Before anything is timed, the numbers of parameters must be equal, and the loss of each must fall (where
enough steps are taken to see it). Recgrad reads its rows from
a parquet file, logs and computes its metrics; the peers have theirs in memory as tensors. Recgrad takes lazy
Adagrad for tables and Adam for layers; the peers, which have dense optimizers alone, are timed with Adam and
with Adagrad, and the faster counts. Blocks of steps are interleaved, and medians compared; beside them
torch's own matrix products of the network alone: how much faster than a peer whatever computes them
with torch could be on this machine. A last line is a bound that nothing can pass here: the network's products
with each distinct id of a batch multiplied once, at the peak of the machine's multiply-adds, all else free.

The peers run in an environment of their own, which is made under the cache folder of the user when this
is first run (`peers/environment.py`). TorchEasyRec cannot be installed from PyPI: `peers/published.json` has
what was measured beside it elsewhere.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from google.protobuf import text_format
from peers.bounds import layer_products, operations, product_times
from peers.ctr_trainer import DEEP, DIM
from peers.environment import peers_python
from peers.peak import multiply_add_rate
from results.bars import Bar, describe_bar, write_bars
from train import WARM_STEPS, watched_run

from recgrad.config import PipelineConfig
from recgrad.training.assembly import Training, build_training
from recgrad.training.runtime import set_up_process

FIELDS, NUMBERS, BATCH = 26, 13, 8192
CRITEO = (
    1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5_683, 8_351_593, 3_194,
    27, 14_992, 5_461_306, 10, 5_652, 2_173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572,
)  # fmt: skip
LARGEST = 1_000_000  # of the columns above it as many ids are left as a number of rows in all allows
ZIPF = 1.1


def criteo_sizes(rows: int) -> list[int]:
    """Rows of the tables in Criteo's shape, so many together."""
    others = sum(size for size in CRITEO if size <= LARGEST)
    share = (rows - others) / sum(size for size in CRITEO if size > LARGEST)
    return [size if size <= LARGEST else int(size * share) for size in CRITEO]


SIZES = {
    "criteo": criteo_sizes(1_000_000),
    "criteo-10m": criteo_sizes(10_000_000),
    "even": [10_000] * FIELDS,
    "even-10m": [10_000_000 // FIELDS] * FIELDS,
}
GOALS = {"criteo": 2.0, "criteo-10m": 8.0, "even": 2.0, "even-10m": 8.0}
PRODUCTS_GOAL = 0.85  # of the speed that a step of matrix products alone, by torch, would have
STEPS = {"criteo": 12, "criteo-10m": 4, "even": 12, "even-10m": 4}  # of a block
WARM = {"criteo": 40, "criteo-10m": 3, "even": 40, "even-10m": 3}  # steps of a peer before it is timed
LEARNING_STEPS = 40  # by which a loss must have fallen: DeepCTR-Torch begins with weights near 0
HERE = Path(__file__).parent


def make_ids(rng: np.random.Generator, rows: int, size: int, kind: str) -> Any:
    """Ids of a table: with Zipf's frequencies, or such that a third of the rows have a tenth of the ids."""
    places = rng.random(rows)
    if kind.startswith("even"):
        return (places**2 * size).astype(np.int64)
    ranks = (1 + places * (size ** (1 - ZIPF) - 1)) ** (1 / (1 - ZIPF))
    return np.minimum(ranks.astype(np.int64) - 1, size - 1)


def make_rows(rows: int, kind: str, seed: int = 0) -> dict[str, Any]:
    """Ids, numbers, and labels that some of both decide."""
    rng = np.random.default_rng(seed)
    ids = np.stack([make_ids(rng, rows, size, kind) for size in SIZES[kind]], axis=1)
    numbers = rng.standard_normal((rows, NUMBERS)).astype(np.float32)
    logits = numbers[:, 0] + ((ids[:, :4] * 2654435761 >> 7) % 3 - 1).sum(1)
    labels = (rng.random(rows) < 1 / (1 + np.exp(-logits))).astype(np.float32)
    return {"ids": ids, "numbers": numbers, "labels": labels, "sizes": np.array(SIZES[kind])}


def recgrad_config(folder: Path, rows: dict[str, Any]) -> PipelineConfig:
    """The network as a config, and the rows as a parquet file."""
    columns = {f"cat_{i}": rows["ids"][:, i] for i in range(FIELDS)}
    columns |= {f"int_{i}": rows["numbers"][:, i] for i in range(NUMBERS)}
    path = folder / "train.parquet"
    pq.write_table(pa.table({"label": rows["labels"].astype(np.int32), **columns}), path)
    ids, numbers = ([name for name in columns if name.startswith(start)] for start in ("cat", "int"))
    features = [f'feature_configs {{ raw_feature {{ feature_name: "{n}" }} }}' for n in numbers]
    features += [
        f'feature_configs {{ id_feature {{ feature_name: "{n}" num_buckets: {size} embedding_dim: {DIM} }} }}'
        for n, size in zip(ids, rows["sizes"], strict=True)
    ]
    groups = (("wide", "WIDE", ids), ("fm", "DEEP", ids), ("deep", "DEEP", numbers + ids))
    listed = "".join(
        f"feature_groups {{ group_name: '{name}' group_type: {kind} feature_names: {json.dumps(names)} }}"
        for name, kind, names in groups
    )
    text = f"""
    train_input_path: "{path}"
    train_config {{
      sparse_optimizer {{ adagrad_optimizer {{ lr: 0.01 }} }}
      dense_optimizer {{ adam_optimizer {{ lr: 0.001 }} }}
      num_epochs: 1000 save_checkpoints_steps: 1000000000 log_step_count_steps: 10
    }}
    data_config {{ dataset_type: ParquetDataset batch_size: {BATCH} label_fields: "label" num_workers: 1 }}
    {"".join(features)}
    model_config {{
      {listed}
      deepfm {{ deep {{ hidden_units: {DEEP} }} wide_embedding_dim: 1 }}
      train_metrics {{ auc {{}} }} metrics {{ auc {{}} }} losses {{ binary_cross_entropy {{}} }}
    }}"""
    return text_format.Parse(text, PipelineConfig())


def least_operations(ids: Any) -> float:
    """Operations of products on a batch, if the first layer multiplies each distinct id of a field once."""
    first, *others = DEEP
    products = layer_products(BATCH, NUMBERS, first, inputs_need_gradients=False)
    for column in ids.T:
        products += layer_products(len(np.unique(column)), DIM, first)
    return operations(products + layer_products(BATCH, first, *others, 1))


class Peer:
    """A process that trains a peer's DeepFM when it is told to."""

    def __init__(self, name: str, rows: Path, optimizer: str, threads: int) -> None:
        self.name, self.optimizer = name, optimizer
        command = [str(peers_python()), str(HERE / "peers" / "ctr_trainer.py"), name, str(rows)]
        # Glibc keeps freed memory, as the commands of Recgrad have it do.
        kept = {"MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_MMAP_MAX_": "0"}
        environment = {**os.environ, **kept, "OMP_NUM_THREADS": str(threads)}
        environment.pop("PYTHONPATH", None)
        self.process = subprocess.Popen(
            [*command, optimizer, str(BATCH)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env=environment, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.parameters = self._answer()["parameters"]
        self.losses: list[float] = []
        self.seconds: list[float] = []

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended: run benchmarks/peers/ctr_trainer.py to see why")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def run(self, steps: int, *, timed: bool = True) -> None:
        """Take some steps."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        answer = self._answer()
        self.losses += answer["losses"]
        if timed:
            self.seconds.append(answer["seconds"] / steps)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def check_losses(name: str, losses: list[float]) -> None:
    """Refuse a network that does not learn."""
    first, last = mean(losses[:3]), mean(losses[-3:])
    assert np.isfinite(losses).all(), f"{name}: a loss is not finite"
    if len(losses) >= LEARNING_STEPS:
        assert last < first, f"{name}: the loss went from {first:.4f} to {last:.4f}"


def parameters_of(training: Training) -> int:
    model = training.task.model
    tables = sum(spec.num_rows * spec.dim for spec in model.groups.plan.tables)
    return tables + sum(p.numel() for _, p in model.dense_named_parameters())


def compare(kind: str, folder: Path, rounds: int, threads: int) -> list[Bar]:
    rows = make_rows(BATCH * 40, kind)
    np.savez(folder / "rows.npz", **rows)
    config = recgrad_config(folder, rows)
    training = build_training(config)
    products = product_times(layer_products(BATCH, NUMBERS + FIELDS * DIM, *DEEP, 1))
    ours: list[float] = []
    alone: list[float] = []
    peaks: list[float] = []
    losses: list[float] = []
    speeds: dict[tuple[str, str], float] = {}
    for name in ("fuxictr", "deepctr"):
        for optimizer in ("Adam", "Adagrad"):  # one peer in memory at a time: dense optimizers need much
            peer = Peer(name, folder / "rows.npz", optimizer, threads)
            assert peer.parameters == parameters_of(training), (
                name,
                peer.parameters,
                parameters_of(training),
            )
            peer.run(WARM[kind], timed=False)
            for _ in range(rounds):
                watch = watched_run(config, training, folder, STEPS[kind])
                ours.append((watch.marks[-1] - watch.marks[WARM_STEPS - 1]) / STEPS[kind])
                losses += [report.losses["total"] for report in watch.reports]
                alone.append(median(products() for _ in range(5)))
                peaks.append(multiply_add_rate())
                peer.run(STEPS[kind])
            check_losses(f"{name} with {optimizer}", peer.losses)
            peer.close()
            speeds[name, optimizer] = BATCH / median(peer.seconds)
    check_losses("recgrad", losses)
    own, most = BATCH / median(ours), BATCH / median(alone)
    needed = mean(least_operations(batch) for batch in np.split(rows["ids"], len(rows["ids"]) // BATCH))
    bound = BATCH * median(peaks) / needed
    print(f"\n{kind}: {sum(SIZES[kind]):,} rows in {FIELDS} tables, {parameters_of(training):,} parameters")
    print(f"  {'recgrad, whole loop':36}{own:12,.0f} samples/s")
    print(f"  {'torch, the products alone':36}{most:12,.0f}")
    print(
        f"  {'products of distinct ids at the peak':36}{bound:12,.0f}   "
        f"({needed / 1e9:.1f} GFLOP a step, {median(peaks) / 1e9:.0f} GFLOP/s)"
    )
    for (name, optimizer), speed in speeds.items():
        print(f"  {name + ', ' + optimizer + ', rows in memory':36}{speed:12,.0f}{own / speed:8.2f} x")
    bars = [Bar(f"frameworks: DeepFM, {kind}, over torch's products alone", own / most, PRODUCTS_GOAL, True)]
    for name in ("fuxictr", "deepctr"):
        best = max(speed for (of, _), speed in speeds.items() if of == name)
        note = f"torch's products alone would be {most / best:.1f} times it, the bound {bound / best:.1f}"
        bars.append(Bar(f"frameworks: DeepFM, {kind}, over {name}", own / best, GOALS[kind], True, note))
    return bars


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=list(SIZES), default=list(SIZES)[:3])
    args = parser.parse_args()
    threads = set_up_process()
    print(f"{threads} threads, torch {torch.__version__}")
    bars: list[Bar] = []
    for kind in args.only:
        with tempfile.TemporaryDirectory() as folder:
            bars += compare(kind, Path(folder), args.rounds, threads)
    published = json.loads((HERE / "peers" / "published.json").read_text())
    print(f"\nmeasured elsewhere ({published['machine']}, {published['date']}), Recgrad over:")
    for line in published["ratios"]:
        print(f"  {line['peer']:16}{line['what']:44}{line['ratio']:8.2f} x")
    print()
    print("\n".join(map(describe_bar, bars)))
    write_bars(args.json, bars)
    return 0


if __name__ == "__main__":
    sys.exit(main())
