"""Whole training runs: what the loop costs beside the model's own compute, and against torch's tables.

    python benchmarks/train.py [--json FILE] [--rows N] [--rounds N]

1. DeepFM of the Criteo example (13 numeric and 26 id features, dim 16, deep 512-256-128, final 64,
   batch 8192) on a synthetic parquet file: throughput of the whole loop (reading, metrics, logging)
   over that of the same updates on a batch held in memory.
2. The same run with a checkpoint every 100 steps over the run without.
3. Multi-tower DIN with three list features of up to 100 ids, batch 4096, widths of TorchEasyRec's
   example for the Taobao data (dim 16, attn_mlp 256-64, deep 512-256-128, final 64). The peer is the same
   model as TorchEasyRec's users have it on a CPU: torch.nn.Embedding tables, histories padded to the
   longest, [query, position, difference, product] built for each of them, a masked softmax, and
   dense Adam over everything, tables too. A second line, which is no bar, has that model with our
   attention, so that tables and optimizer alone differ.
4. From typing the command to the first finished step, over the time of `import torch`.

Rounds are interleaved and medians compared. Before a model is timed against its peer, both are
shown to give the same outputs for the same tables.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from google.protobuf import text_format
from torch import Tensor, nn

from recgrad.config import PipelineConfig, load_config, save_config
from recgrad.config.proto.optimizer_pb2 import SparseOptimizer
from recgrad.data.batch import Batch, KeyedDense, KeyedJagged
from recgrad.data.features.spec import FeatureSpec, Kind
from recgrad.data.synth import write_synth
from recgrad.embedding.build import build_sparse_optimizer
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.models.group_plan import FeatureGroup
from recgrad.models.multi_tower_din import MultiTowerDIN
from recgrad.nn.encoders.din import DINEncoder
from recgrad.nn.jagged import Segments, pad
from recgrad.training.assembly import Training, build_hooks, build_training
from recgrad.training.capture import capture
from recgrad.training.checkpoint import CheckpointManager
from recgrad.training.hooks.base import Hook, StepReport
from recgrad.training.runtime import keep_freed_memory, use_all_cores
from recgrad.training.trainer import RunLength, Trainer

WARM_STEPS = 5
TIMED_STEPS = 40
CHECKPOINT_STEPS = 100
DIN_ROWS = {"adgroup_id": 846_812, "cate_id": 12_961, "brand": 461_498}
DIN_BATCH = 4096
ATTENTION = [256, 64]
DIM = 16


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    keep_freed_memory()
    threads = use_all_cores()
    print(f"{threads} threads, torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as folder:
        write_synth(folder, args.rows)
        config = criteo_config(Path(folder))
        bars = [
            *loop_bars(config, Path(folder), args.rounds),
            din_bar(args.rounds),
            start_bar(config, Path(folder), args.rounds),
        ]
    peak_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"\npeak memory {peak_gb:.2f} GB\n")
    for bar in bars:
        print(
            f"{'ok ' if bar['holds'] else 'NO '} {bar['name']:<60} {bar['ratio']:8.3f}   goal {bar['goal']}"
        )
    if args.json:
        args.json.write_text(json.dumps(bars, indent=2) + "\n")
    return 0


def bar(name: str, ratio: float, goal: float, *, at_least: bool) -> dict[str, Any]:
    holds = ratio >= goal if at_least else ratio <= goal
    return {"name": name, "ratio": ratio, "goal": f"{'>=' if at_least else '<='} {goal}", "holds": holds}


def criteo_config(folder: Path) -> PipelineConfig:
    config = load_config(folder / "deepfm.config")
    config.data_config.batch_size = 8192
    config.data_config.num_workers = 1
    deepfm = config.model_config.deepfm
    deepfm.deep.hidden_units[:] = [512, 256, 128]
    deepfm.final.hidden_units[:] = [64]
    deepfm.wide_embedding_dim = 4
    for feature in config.feature_configs:
        if feature.HasField("id_feature"):
            feature.id_feature.embedding_dim = DIM
    settings = config.train_config
    settings.ClearField("sparse_optimizer")
    settings.ClearField("dense_optimizer")
    text_format.Parse("adagrad_optimizer { lr: 0.001 }", settings.sparse_optimizer)
    text_format.Parse("adam_optimizer { lr: 0.001 }", settings.dense_optimizer)
    settings.ClearField("save_checkpoints_epochs")
    settings.save_checkpoints_steps = 10**9
    settings.log_step_count_steps = 10
    return config


class Stopwatch(Hook):
    """The seconds of each step, as the wall clock has them."""

    def __init__(self) -> None:
        self.marks: list[float] = []
        self.reports: list[StepReport] = []

    def after_step(self, trainer: Trainer, report: StepReport) -> None:
        self.marks.append(time.perf_counter())
        self.reports.append(report)


def loop_seconds(
    config: PipelineConfig, training: Training, folder: Path, steps: int, save_every: int
) -> Any:
    """A real run of `steps` steps after the warm ones: (seconds a step, share waiting for data)."""
    model_dir = folder / f"model-{time.monotonic_ns()}"
    model_dir.mkdir()
    watch = Stopwatch()
    checkpoints = CheckpointManager(model_dir, keep_max=1)

    class Save(Hook):
        def after_step(self, trainer: Trainer, report: StepReport) -> None:
            if save_every and report.step % save_every == 0:
                checkpoints.save(capture(training, trainer.state))

    hooks = [hook for hook in build_hooks(config, model_dir) if type(hook).__name__ != "SaveCheckpoints"]
    trainer = Trainer(
        task=training.task,
        loader=training.train_loader,
        updater=training.updater,
        length=RunLength(num_steps=WARM_STEPS + steps),
        hooks=[*hooks, Save(), watch],
    )
    trainer.run()
    ended = time.perf_counter()
    checkpoints.wait()
    # What is left of the writing counts; closing logs, which both runs do after the last step, does not.
    spent = watch.marks[-1] + time.perf_counter() - ended
    wait = sum(report.data_wait_secs for report in watch.reports[WARM_STEPS:])
    total = spent - watch.marks[WARM_STEPS - 1]
    return total / steps, wait / total


def compute_seconds(training: Training, batch: Batch, steps: int) -> float:
    """Seconds of an update on a batch that is there already: no reading, no metrics, no logging."""
    start = time.perf_counter()
    for _ in range(steps):
        losses = training.task.losses(training.task(batch), batch)
        training.updater.backward(losses["total"])
        training.updater.step()
    return (time.perf_counter() - start) / steps


def loop_bars(config: PipelineConfig, folder: Path, rounds: int) -> list[dict[str, Any]]:
    training = build_training(config)
    batch = next(iter(training.train_loader.epoch(0)))
    training.task.train()
    compute_seconds(training, batch, WARM_STEPS)
    whole, compute, plain, saving, waits = [], [], [], [], []
    for _ in range(rounds):
        seconds, wait = loop_seconds(config, training, folder, TIMED_STEPS, save_every=0)
        whole.append(seconds)
        waits.append(wait)
        compute.append(compute_seconds(training, batch, TIMED_STEPS))
    for _ in range(max(1, rounds // 2)):
        plain.append(loop_seconds(config, training, folder, CHECKPOINT_STEPS, save_every=0)[0])
        saving.append(loop_seconds(config, training, folder, CHECKPOINT_STEPS, CHECKPOINT_STEPS)[0])
    speed, memory_speed = (batch.size / statistics.median(seconds) for seconds in (whole, compute))
    print(f"DeepFM: {speed:,.0f} samples/s in the loop, {memory_speed:,.0f} in memory")
    print(f"        waiting for data {statistics.median(waits):.1%} of the time")
    ratio = statistics.median(compute) / statistics.median(whole)
    slower = statistics.median(saving) / statistics.median(plain)
    return [
        bar("throughput of the loop over the model's compute alone", ratio, 0.85, at_least=True),
        bar("time with a checkpoint every 100 steps over without", slower, 1.05, at_least=False),
    ]


class TorchTables(nn.Module):
    """The peer: an nn.Embedding a table, looked up and pooled by torch."""

    def __init__(
        self,
        tables: Sequence[TableSpec],
        lookups: Sequence[LookupSpec],
        *,
        keys: Sequence[str],
        sequence_keys: Sequence[str] = (),
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.specs = {spec.name: spec for spec in lookups}
        self.keys, self.sequence_keys = list(keys), list(sequence_keys)
        self.weights = nn.ModuleDict({spec.name: nn.Embedding(spec.num_rows, spec.dim) for spec in tables})

    def forward(self, ids: KeyedJagged, sequences: KeyedJagged | None = None) -> TorchEmbedded:
        return TorchEmbedded(self, ids, sequences)


class TorchEmbedded:
    def __init__(self, tables: TorchTables, ids: KeyedJagged, sequences: KeyedJagged | None) -> None:
        self.tables, self.ids, self.sequences = tables, ids, sequences

    def pooled(self, names: Sequence[str]) -> Tensor:
        return torch.cat([self._look_up(name, self.ids) for name in names], dim=1)

    def sequence(self, name: str) -> Tensor:
        assert self.sequences is not None
        return self._look_up(name, self.sequences)

    def _look_up(self, name: str, ids: KeyedJagged) -> Tensor:
        """Every bag of these features holds one id, so pooling is the lookup itself."""
        spec = self.tables.specs[name]
        rows: Tensor = self.tables.weights[spec.table](ids[spec.key].values)
        return rows


def din_features() -> list[FeatureSpec]:
    def spec(name: str, rows: int, sequence: bool) -> FeatureSpec:
        table = name.removeprefix("click_seq__")
        return FeatureSpec(
            name, Kind.SPARSE, sequence=sequence, sequence_name="click_seq" if sequence else None,
            num_rows=rows, embedding_dim=DIM, embedding_name=table,
        )  # fmt: skip

    items = [spec(name, rows, sequence=False) for name, rows in DIN_ROWS.items()]
    return items + [spec(f"click_seq__{name}", rows, sequence=True) for name, rows in DIN_ROWS.items()]


def din_batch(rng: np.random.Generator) -> Batch:
    lengths = rng.integers(1, 101, DIN_BATCH).astype(np.int32)
    positions = int(lengths.sum())

    def ids(count: int) -> Tensor:
        return torch.from_numpy(np.concatenate([rng.integers(0, rows, count) for rows in DIN_ROWS.values()]))

    def jagged(keys: Sequence[str], count: int) -> KeyedJagged:
        ones = torch.ones(len(keys) * count, dtype=torch.int32)
        return KeyedJagged(tuple(keys), ids(count), ones, (count,) * len(keys), single=True)

    names = list(DIN_ROWS)
    return Batch(
        size=DIN_BATCH,
        dense=KeyedDense((), (), torch.empty(DIN_BATCH, 0)),
        sparse=jagged(names, DIN_BATCH),
        sequence_lengths={f"click_seq__{name}": torch.from_numpy(lengths) for name in names},
        sequence_sparse=jagged([f"click_seq__{name}" for name in names], positions),
        labels={"label": torch.from_numpy(rng.integers(0, 2, DIN_BATCH)).float()},
    )


def din_model(engine: Any = None) -> MultiTowerDIN:
    sequence = [f"click_seq__{name}" for name in DIN_ROWS]
    groups = [FeatureGroup("deep", list(DIN_ROWS)), FeatureGroup("seq", [*DIN_ROWS, *sequence], "SEQUENCE")]
    return MultiTowerDIN(
        din_features(),
        groups,
        engine=engine,
        towers=[{"input": "deep", "mlp": {"hidden_units": [512, 256, 128]}}],
        din_towers=[{"input": "seq", "attn_mlp": {"hidden_units": ATTENTION}}],
        final={"hidden_units": [64]},
    )


class PaddedDIN(nn.Module):
    """The peer's attention, over histories that are padded to the longest."""

    def __init__(self, dim: int, hidden_units: Sequence[int]) -> None:
        super().__init__()
        widths = [4 * dim, *hidden_units]
        self.mlp = nn.Sequential()
        for i, (a, b) in enumerate(pairwise(widths)):
            self.mlp.add_module(f"linear{i}", nn.Linear(a, b))
            self.mlp.add_module(f"activation{i}", nn.ReLU())
        self.score = nn.Linear(widths[-1], 1, bias=False)

    def forward(self, query: Tensor, sequence: Tensor, lengths: Tensor) -> Tensor:
        padded = pad(sequence, Segments.from_lengths(lengths, len(sequence)))
        wide = query.unsqueeze(1).expand_as(padded)
        inputs = torch.cat([wide, padded, wide - padded, wide * padded], dim=2)
        scores = self.score(self.mlp(inputs)).squeeze(2)
        exists = torch.arange(padded.shape[1]) < lengths.unsqueeze(1)
        weights = scores.masked_fill(~exists, -torch.inf).softmax(dim=1)
        return torch.bmm(weights.unsqueeze(1), padded).squeeze(1)


def padded_model() -> MultiTowerDIN:
    model = din_model(TorchTables)
    (din,) = model.dins
    assert isinstance(din, DINEncoder)
    model.dins[0] = PaddedDIN(din.sequence_dim, ATTENTION)
    return model


def din_bar(rounds: int) -> dict[str, Any]:
    batch = din_batch(np.random.default_rng(0))
    ours, padded, tables = din_model(), padded_model(), din_model(TorchTables)
    for peer in (padded, tables):
        check_same_outputs(ours, peer, batch)
    sparse_config = text_format.Parse("adam_optimizer { lr: 0.001 }", SparseOptimizer())
    sparse = build_sparse_optimizer(ours.engine, sparse_config)
    dense = torch.optim.Adam([p for _, p in ours.dense_named_parameters()], lr=0.001)
    steps = {"ours": step_of(ours, batch, [dense, sparse])}
    for name, peer in (("padded", padded), ("tables", tables)):
        steps[name] = step_of(peer, batch, [torch.optim.Adam(peer.parameters(), lr=0.001)])
    times: dict[str, list[float]] = {name: [] for name in steps}
    for round_ in range(rounds + 1):
        for name, repeats in (("ours", 4), ("padded", 1), ("tables", 2)):
            start = time.perf_counter()
            for _ in range(repeats):
                steps[name]()
            if round_:  # the first round warms
                times[name].append((time.perf_counter() - start) / repeats)
    seconds = {name: statistics.median(of_name) for name, of_name in times.items()}
    speeds = {name: f"{DIN_BATCH / of_name:,.0f}" for name, of_name in seconds.items()}
    print(f"DIN:    {speeds['ours']} samples/s, {speeds['padded']} with torch's tables and padded histories")
    print(f"        {speeds['tables']} with torch's tables and dense Adam, but our attention")
    ratio = seconds["padded"] / seconds["ours"]
    return bar("multi-tower DIN over padded, torch tables and dense Adam", ratio, 20, at_least=True)


def check_same_outputs(ours: MultiTowerDIN, peer: MultiTowerDIN, batch: Batch) -> None:
    """Give the peer our layers, and our tables the rows of the peer's, and compare the logits."""
    own = {name: p for name, p in ours.state_dict().items() if not name.startswith("engine.")}
    missing, unexpected = peer.load_state_dict(own, strict=False)
    assert not unexpected, unexpected
    assert all(name.startswith("engine.") for name in missing), missing
    for name, rows in DIN_ROWS.items():
        used = torch.cat([batch.sparse[name].values, batch.sequence_sparse[f"click_seq__{name}"].values])
        ids = torch.unique(used)
        assert ids.max() < rows
        ours.engine.import_table(name, ids.numpy(), peer.engine.weights[name].weight[ids].detach().numpy())
    with torch.no_grad():
        a, b = ours(batch)["logits"], peer(batch)["logits"]
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def step_of(model: MultiTowerDIN, batch: Batch, optimizers: Sequence[Any]) -> Callable[[], None]:
    def step() -> None:
        logits = model(batch)["logits"]
        nn.functional.binary_cross_entropy_with_logits(logits, batch.labels["label"]).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


def start_bar(config: PipelineConfig, folder: Path, rounds: int) -> dict[str, Any]:
    """Time to the first finished step of the quickstart's model, over the time to import torch."""
    small = folder / "small"
    write_synth(small, 20_000)
    quick = load_config(small / "deepfm.config")
    quick.train_config.ClearField("num_epochs")
    quick.train_config.num_steps = 1
    quick.train_config.log_step_count_steps = 1
    save_config(quick, small / "one_step.config")
    first, imports = [], []
    # Bytecode is cached as where packages are installed, whatever this environment says.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(small / "bytecode")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    for round_ in range(rounds + 1):
        model_dir = small / f"model-{round_}"
        started = time.time()
        command = [sys.executable, "-m", "recgrad", "train", str(small / "one_step.config")]
        command += ["--model_dir", str(model_dir)]
        subprocess.run(command, check=True, capture_output=True, env=environment)
        events = map(json.loads, (model_dir / "events.jsonl").read_text().splitlines())
        first.append(next(event["time"] for event in events if event["kind"] == "train") - started)
        started = time.time()
        subprocess.run([sys.executable, "-c", "import torch"], check=True, env=environment)
        imports.append(time.time() - started)
    # The first round warms the caches of the kernels and of the disk.
    first_s, import_s = statistics.median(first[1:]), statistics.median(imports[1:])
    print(f"start:  first step after {first_s:.2f} s, of which import torch {import_s:.2f} s")
    return bar("first step over import torch (4 s over 2 s)", first_s / import_s, 2.0, at_least=False)


if __name__ == "__main__":
    sys.exit(main())
