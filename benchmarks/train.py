"""Whole training runs: what the loop costs beside the model's own compute, and against torch's tables.

    python benchmarks/train.py [--json FILE] [--rows N] [--rounds N]

1. DeepFM of the Criteo example (13 numeric and 26 id features, dim 16, deep 512-256-128, final 64,
   batches of 8192 and of 512) on a synthetic parquet file: throughput of the whole loop (reading,
   metrics, logging) over that of the same updates on batches held in memory.
2. The same run with a checkpoint every 100 steps over the run without, from what a checkpoint adds to
   a block of steps over the neighbouring block without one.
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
from itertools import cycle, islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from google.protobuf import text_format
from peers.bounds import product_rate
from peers.din import (
    ATTENTION,
    DIM,
    DIN_BATCH,
    DIN_ROWS,
    check_same_outputs,
    din_batch,
    din_model,
    padded_model,
    torch_tables_model,
)
from results.bars import Bar, describe_bar, write_bars
from torch import nn

from recgrad.config import PipelineConfig, load_config, save_config
from recgrad.config.proto.optimizer_pb2 import SparseOptimizer
from recgrad.data.batch import Batch
from recgrad.embedding.build import build_sparse_optimizer
from recgrad.models.multi_tower_din import MultiTowerDIN
from recgrad.synth import write_synth
from recgrad.training.assembly import Training, build_hooks, build_training
from recgrad.training.capture import capture
from recgrad.training.checkpoint import CheckpointManager
from recgrad.training.hook import Hook, StepReport
from recgrad.training.hooks.checkpoints import SaveCheckpoints
from recgrad.training.runtime import set_up_process
from recgrad.training.trainer import RunLength, Trainer

BATCH, SMALL_BATCH = 8192, 512
SMALL_BATCH_STEPS = 5  # times as many steps as of large ones
BATCHES_IN_MEMORY = 16
WARM_STEPS = 5
TIMED_STEPS = 40
CHECKPOINT_STEPS = 100
BLOCK_STEPS = 10
PAIRS = 4


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    threads = set_up_process()
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
    print("\n".join(map(describe_bar, bars)))
    write_bars(args.json, bars)
    return 0


def criteo_config(folder: Path) -> PipelineConfig:
    config = load_config(folder / "deepfm.config")
    config.data_config.batch_size = BATCH
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
    """When each step was finished, as the wall clock has it."""

    def __init__(self) -> None:
        self.marks: list[float] = []
        self.reports: list[StepReport] = []

    def after_step(self, trainer: Trainer, report: StepReport) -> None:
        self.marks.append(time.perf_counter())
        self.reports.append(report)


class SaveInTurn(Hook):
    """Saves at the start of every other block of steps, and has the checkpoint written by its end.

    Blocks come as without, with, with, without, so that a machine that grows faster or slower
    favours neither.
    """

    def __init__(self, training: Training, checkpoints: CheckpointManager) -> None:
        self.training = training
        self.checkpoints = checkpoints

    @staticmethod
    def saves(block: int) -> bool:
        return block % 4 in (1, 2)

    def after_step(self, trainer: Trainer, report: StepReport) -> None:
        block, place = divmod(report.step - WARM_STEPS - 1, BLOCK_STEPS)
        if block >= 0 and self.saves(block):
            if place == 0:
                self.checkpoints.save(capture(self.training, trainer.state))
            elif place == BLOCK_STEPS - 1:
                self.checkpoints.wait()


def watched_run(
    config: PipelineConfig, training: Training, folder: Path, steps: int, *, saving: bool = False
) -> Stopwatch:
    """A real run of `steps` steps after the warm ones, its checkpoints in turns or none."""
    model_dir = folder / f"model-{time.monotonic_ns()}"
    model_dir.mkdir()
    watch = Stopwatch()
    hooks = [hook for hook in build_hooks(config, model_dir) if not isinstance(hook, SaveCheckpoints)]
    if saving:
        hooks.append(SaveInTurn(training, CheckpointManager(model_dir, keep_max=1)))
    trainer = Trainer(
        task=training.task,
        loader=training.train_loader,
        updater=training.updater,
        length=RunLength(num_steps=WARM_STEPS + steps),
        hooks=[*hooks, watch],
    )
    trainer.run()
    return watch


def loop_seconds(config: PipelineConfig, training: Training, folder: Path, steps: int) -> tuple[float, float]:
    """Seconds a step of a real run, and the share of them spent waiting for data."""
    watch = watched_run(config, training, folder, steps)
    total = watch.marks[-1] - watch.marks[WARM_STEPS - 1]
    return total / steps, sum(report.data_wait_secs for report in watch.reports[WARM_STEPS:]) / total


def saving_ratio(config: PipelineConfig, training: Training, folder: Path, pairs: int) -> float:
    """Time of 100 steps with one checkpoint over without.

    A checkpoint takes less than a step, and runs on this kind of machine differ by more than
    that. So blocks of steps with and without one are neighbours in one run, and the median of
    what a block with one takes longer is what a checkpoint costs.
    """
    watch = watched_run(config, training, folder, 2 * pairs * BLOCK_STEPS, saving=True)
    edges = watch.marks[WARM_STEPS - 1 :: BLOCK_STEPS]
    seconds = [after - before for before, after in pairwise(edges)]
    longer = [
        (second - first) * (1 if SaveInTurn.saves(2 * pair + 1) else -1)
        for pair, (first, second) in enumerate(zip(seconds[::2], seconds[1::2], strict=True))
    ]
    plain = statistics.median(block for i, block in enumerate(seconds) if not SaveInTurn.saves(i))
    cost, step = statistics.median(longer), plain / BLOCK_STEPS
    print(f"        a checkpoint costs {cost:.3f} s, a step {step:.3f} s")
    return 1 + cost / (CHECKPOINT_STEPS * step)


def compute_seconds(training: Training, batches: Sequence[Batch], steps: int) -> float:
    """Seconds of an update on a batch that is there already: no reading, no metrics, no logging."""
    start = time.perf_counter()
    for batch in islice(cycle(batches), steps):
        losses = training.task.losses(training.task(batch), batch)
        training.updater.backward(losses["total"])
        training.updater.step()
    return (time.perf_counter() - start) / steps


def loop_bar(config: PipelineConfig, training: Training, folder: Path, rounds: int) -> Bar:
    """The whole loop against updates of some of its batches in memory."""
    batches = list(islice(training.train_loader.epoch(0), BATCHES_IN_MEMORY))
    size = batches[0].size
    steps = TIMED_STEPS * (1 if size == BATCH else SMALL_BATCH_STEPS)
    training.task.train()
    compute_seconds(training, batches, WARM_STEPS)
    loops, computes, waits = [], [], []
    for _ in range(rounds):
        seconds, wait = loop_seconds(config, training, folder, steps)
        loops.append(seconds)
        waits.append(wait)
        computes.append(compute_seconds(training, batches, steps))
    ratio = statistics.median(compute / loop for compute, loop in zip(computes, loops, strict=True))
    speed, memory_speed = (size / statistics.median(seconds) for seconds in (loops, computes))
    print(f"DeepFM, batch {size}: {speed:,.0f} samples/s in the loop, {memory_speed:,.0f} in memory,")
    print(f"        waiting for data {statistics.median(waits):.1%} of the time")
    name = f"batch {size}: throughput of the loop over the model's compute alone"
    return Bar(name, ratio, 0.85, at_least=True)


def loop_bars(config: PipelineConfig, folder: Path, rounds: int) -> list[Bar]:
    training = build_training(config)
    bars = [loop_bar(config, training, folder, rounds)]
    slower = saving_ratio(config, training, folder, PAIRS * rounds)
    small = PipelineConfig()
    small.CopyFrom(config)
    small.data_config.batch_size = SMALL_BATCH
    bars.append(loop_bar(small, build_training(small), folder, rounds))
    return [*bars, Bar("time with a checkpoint every 100 steps over without", slower, 1.05, at_least=False)]


def din_bar(rounds: int) -> Bar:
    batch = din_batch(np.random.default_rng(0))
    ours, padded, tables = din_model(), padded_model(), torch_tables_model()
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
    assert batch.sequence_sparse is not None
    rate, needed = product_rate(), attention_operations(batch.sequence_sparse.bag_counts[0])
    most = DIN_BATCH / (needed / rate)
    print(f"        the attention needs {needed / 1e9:.1f} GFLOP a step, torch's own product does", end=" ")
    print(f"{rate / 1e9:.0f} GFLOP/s: {most:,.0f} samples/s if all else were free")
    ratio = seconds["padded"] / seconds["ours"]
    return Bar("multi-tower DIN over padded, torch tables and dense Adam", ratio, 20, at_least=True)


def attention_operations(positions: int) -> float:
    """Floating-point operations of DIN's two layers over so many positions, forward and backward, unpadded.

    The query's part and the difference fold into a first layer of each row's own, so a position
    costs the width of its vector, not four times that.
    """
    width = DIM * len(DIN_ROWS)
    weights = sum(a * b for a, b in pairwise([width, *ATTENTION]))
    return 3 * 2.0 * weights * positions


def step_of(model: MultiTowerDIN, batch: Batch, optimizers: Sequence[Any]) -> Callable[[], None]:
    def step() -> None:
        logits = model(batch)["logits"]
        nn.functional.binary_cross_entropy_with_logits(logits, batch.labels["label"]).backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    return step


def start_bar(config: PipelineConfig, folder: Path, rounds: int) -> Bar:
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
    return Bar("first step over import torch (4 s over 2 s)", first_s / import_s, 2.0, at_least=False)


if __name__ == "__main__":
    sys.exit(main())
