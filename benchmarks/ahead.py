"""What it brings to send a batch's ids to the ranks that hold their rows during the step before.

    python benchmarks/ahead.py [--json FILE] [--rounds N] [--ids N] [--batch N] [--rank R --at HOST:PORT]

Two ranks with one thread each, DeepFM of benchmarks/train.py with tables whole; bags of one id as in the
data, or of `--ids` on average (0 to twice as many, drawn again from the column).

1. Steps whose ids are sent ahead, as the trainer does, over steps that send their own, after both were
   shown to learn the same bits.
2. TorchRec's TrainPipelineSparseDist over its TrainPipelineBase, with as many tables, ids and hidden
   units, SGD, and FBGEMM's kernels: the same idea by its authors.

Both run in turn in the same two processes; the ratio is of medians over rounds, each that of the slower
rank. What the network takes is hidden, what processors do is not: on one machine whose cores are all
busy there is nothing to gain. To have a network between the ranks, start each with --rank
on its own machine, or in network namespaces that are joined by a slow device.
"""

from __future__ import annotations

import argparse
import gc
import logging
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from ranks.run import BATCHES, RANKS, Run, read_batches
from results.bars import Bar, write_bars
from torch import Tensor, nn
from torchrec import EmbeddingBagCollection, EmbeddingBagConfig, KeyedJaggedTensor
from torchrec.distributed import DistributedModelParallel
from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder
from torchrec.distributed.planner import EmbeddingShardingPlanner, ParameterConstraints, Topology
from torchrec.distributed.train_pipeline import TrainPipelineBase, TrainPipelineSparseDist
from torchrec.optim.apply_optimizer_in_backward import apply_optimizer_in_backward
from torchrec.streamable import Pipelineable
from train import criteo_config

from recgrad.config import PipelineConfig
from recgrad.data.batch import Batch, KeyedJagged
from recgrad.embedding.sharded.ids import ids_per_key
from recgrad.models.batch_ids import PreparedBatch
from recgrad.synth import write_synth
from recgrad.training.processes import Environment, Processes
from recgrad.training.runtime import set_up_process
from recgrad.training.synchronize import share_losses

STEPS = 4  # in a row; the first of them has no ids ahead
CHECKED_STEPS = 3
GOAL = 1.03  # never slower but for noise; with a network between the ranks it is faster


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--ids", type=int, default=1)
    parser.add_argument("--batch", type=int, default=2048)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--at", default="")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_synth(folder, RANKS * BATCHES * args.batch)
        if args.rank is not None:
            one_rank(args.rank, args, Path(folder))
        else:
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                args.at = f"127.0.0.1:{free.getsockname()[1]}"
            mp.spawn(one_rank, (args, Path(folder)), RANKS)
    return 0


def one_rank(rank: int, args: Any, folder: Path) -> None:
    """A process of the group; the first one prints."""
    set_up_process(1)
    logging.disable(logging.WARNING)
    host, _, port = args.at.rpartition(":")
    dist.init_process_group("gloo", init_method=f"tcp://{args.at}", rank=rank, world_size=RANKS)
    environment = Environment(rank, RANKS, rank, RANKS, host, int(port), distributed=True)
    variants = {
        "Recgrad": recgrad_steps(criteo_config(folder), Processes(environment), args),
        "TorchRec": torchrec_steps(args.batch, args.ids),
    }
    bars = []
    for name, steps in variants.items():
        seconds = in_turn(steps, args.rounds)
        plain, ahead = (1000 * median(seconds[kind]) for kind in ("plain", "ahead"))
        low = [min(seconds[kind]) for kind in ("plain", "ahead")]
        if rank == 0:
            print(
                f"{name:10} ids/bag {args.ids:3}  plain {plain:7.1f} ms  ahead {ahead:7.1f} ms   "
                f"ratio of medians {ahead / plain:.3f}, of minima {low[1] / low[0]:.3f}",
                flush=True,
            )
            if name == "Recgrad":
                bars.append(Bar("ids sent ahead: time of a step", ahead / plain, GOAL, at_least=False))
    if rank == 0:
        write_bars(args.json, bars)
    dist.barrier()
    gc.collect()
    sys.stdout.flush()
    os._exit(0)  # TorchRec's pipelines hold the group, whose threads must not outlive Python


def in_turn(steps: Mapping[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Seconds a step of each variant, round by round, of the slower rank."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(rounds + 1):
        for name in sorted(steps, reverse=bool(turn % 2)):
            dist.barrier()
            begin = time.perf_counter()
            steps[name]()
            slowest = torch.tensor([(time.perf_counter() - begin) / STEPS])
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            if turn:  # the first round warms
                seconds[name].append(float(slowest))
    return seconds


# --- Recgrad ---


class AheadRun(Run):
    """A training that sends the ids of the next batch before backward."""

    ids: PreparedBatch | None = None

    def train_ahead(self, batch: Batch, after: Batch | None) -> float:
        """`Run.train`, and the ids of the batch after."""
        task, updater = self.training.task, self.training.updater
        losses = task.losses(task(batch, self.ids), batch)
        values = {name: float(loss.detach()) for name, loss in losses.items()}
        self.ids = None if after is None else task.model.prepare(after)
        shared = share_losses(self.processes, self.stop, batch.size, values)
        if self.ids is not None:
            self.ids.send()
        updater.backward(losses["total"] if shared.share == 1 else losses["total"] * shared.share)
        updater.step()
        return shared.losses["total"]

    def several(self, count: int, *, ahead: bool) -> list[float]:
        """The losses of some steps in a row."""
        batches = [self.batches[i % BATCHES] for i in range(count)]
        if not ahead:
            return [self.train(batch) for batch in batches]
        afters = [*batches[1:], None]
        return [self.train_ahead(batch, after) for batch, after in zip(batches, afters, strict=True)]


def recgrad_steps(config: PipelineConfig, processes: Processes, args: Any) -> dict[str, Callable[[], None]]:
    """Both kinds of steps of one run, after two runs have learned the same bits by them."""
    batches = read_batches(config, processes, args.batch)
    if args.ids > 1:
        generator = torch.Generator().manual_seed(processes.rank)
        batches = [with_bags(batch, args.ids, generator) for batch in batches]
    plain, ahead = (AheadRun(config, processes, "table_wise") for _ in range(2))
    plain.batches = ahead.batches = batches
    assert plain.several(CHECKED_STEPS, ahead=False) == ahead.several(CHECKED_STEPS, ahead=True)
    for name in plain.engine.tables:
        for left, right in zip(plain.engine.export_table(name), ahead.engine.export_table(name)):
            np.testing.assert_array_equal(left, right, err_msg=name)
    return {
        "plain": lambda: void(ahead.several(STEPS, ahead=False)),
        "ahead": lambda: void(ahead.several(STEPS, ahead=True)),
    }


def void(_: Any) -> None:
    """Nothing."""


def with_bags(batch: Batch, mean: int, generator: torch.Generator) -> Batch:
    """The batch with bags of 0 to 2 `mean` ids, drawn from those of the column."""
    ids = batch.sparse
    columns = ids.values.split(ids_per_key(ids).tolist())
    lengths = torch.randint(0, 2 * mean + 1, (len(columns), batch.size), generator=generator)
    drawn = [
        column[torch.randint(0, len(column), (int(own.sum()),), generator=generator)]
        for column, own in zip(columns, lengths, strict=True)
    ]
    many = KeyedJagged(
        ids.keys, torch.cat(drawn), lengths.view(-1).to(ids.lengths.dtype), ids.bag_counts, None, single=False
    )
    return replace(batch, sparse=many)


# --- TorchRec's own pipelines ---

FEATURES, DIMS, ROWS, DENSE = 26, (16, 4), 100_000, 13


@dataclass
class PlainBatch(Pipelineable):  # type: ignore[misc]
    """What TorchRec's pipelines take."""

    dense: Tensor
    sparse: KeyedJaggedTensor
    label: Tensor

    def to(self, device: torch.device, non_blocking: bool = False) -> PlainBatch:
        return self

    def record_stream(self, stream: Any) -> None:
        """There are no streams on CPUs."""

    def pin_memory(self) -> PlainBatch:
        return self


class PlainModel(nn.Module):
    """Tables and hidden layers as many and as wide as the DeepFM's."""

    def __init__(self) -> None:
        super().__init__()
        dims = [dim for dim in DIMS for _ in range(FEATURES)]
        tables = [
            EmbeddingBagConfig(name=f"t{i}", embedding_dim=dim, num_embeddings=ROWS, feature_names=[f"f{i}"])
            for i, dim in enumerate(dims)
        ]
        self.bags = EmbeddingBagCollection(device=torch.device("cpu"), tables=tables)
        sizes = [sum(dims) + DENSE, 512, 256, 128]
        layers = [part for a, b in pairwise(sizes) for part in (nn.Linear(a, b), nn.ReLU())]
        self.deep = nn.Sequential(*layers, nn.Linear(128, 1))

    def forward(self, batch: PlainBatch) -> tuple[Tensor, Tensor]:
        inputs = torch.cat([batch.dense, self.bags(batch.sparse).values()], dim=1)
        logits = self.deep(inputs).squeeze(1)
        return nn.functional.binary_cross_entropy_with_logits(logits, batch.label), logits.detach()


def torchrec_steps(rows: int, mean: int) -> dict[str, Callable[[], None]]:
    """Steps of both of TorchRec's pipelines, after they have given the same outputs."""
    generator = torch.Generator().manual_seed(dist.get_rank())
    batches = [plain_batch(rows, mean, generator) for _ in range(BATCHES)]
    kinds = {"plain": TrainPipelineBase, "ahead": TrainPipelineSparseDist}
    pipelines = {name: torchrec_pipeline(kind) for name, kind in kinds.items()}
    streams = {name: endless(batches) for name in kinds}

    def steps(name: str, count: int = STEPS) -> list[Tensor]:
        return [pipelines[name].progress(streams[name]) for _ in range(count)]

    for left, right in zip(steps("plain", CHECKED_STEPS), steps("ahead", CHECKED_STEPS), strict=True):
        assert torch.equal(left, right)
    return {"plain": lambda: void(steps("plain")), "ahead": lambda: void(steps("ahead"))}


def torchrec_pipeline(kind: Any) -> Any:
    torch.manual_seed(0)
    model = PlainModel()
    apply_optimizer_in_backward(torch.optim.SGD, model.bags.parameters(), {"lr": 0.01})
    whole = ParameterConstraints(sharding_types=["table_wise"], compute_kernels=["fused"])
    constraints = {f"t{i}": whole for i in range(len(DIMS) * FEATURES)}
    sharders = [EmbeddingBagCollectionSharder()]
    planner = EmbeddingShardingPlanner(topology=Topology(RANKS, "cpu"), constraints=constraints)
    plan = planner.collective_plan(model, sharders, dist.GroupMember.WORLD)
    parallel = DistributedModelParallel(model, device=torch.device("cpu"), plan=plan, sharders=sharders)
    dense = [parameter for name, parameter in parallel.named_parameters() if "deep" in name]
    return kind(parallel, torch.optim.SGD(dense, lr=0.01), torch.device("cpu"))


def plain_batch(rows: int, mean: int, generator: torch.Generator) -> PlainBatch:
    bags = len(DIMS) * FEATURES * rows
    lengths = torch.ones(bags, dtype=torch.int64)
    if mean > 1:
        lengths = torch.randint(0, 2 * mean + 1, (bags,), generator=generator)
    ids = torch.randint(0, ROWS, (int(lengths.sum()),), generator=generator)
    keys = [f"f{i}" for i in range(len(DIMS) * FEATURES)]
    return PlainBatch(
        torch.randn(rows, DENSE, generator=generator),
        KeyedJaggedTensor(keys, ids, lengths=lengths.int()),
        torch.randint(0, 2, (rows,), generator=generator).float(),
    )


def endless(batches: list[PlainBatch]) -> Iterator[PlainBatch]:
    while True:
        yield from batches


if __name__ == "__main__":
    sys.exit(main())
