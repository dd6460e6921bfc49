"""A training on batches in memory, by the local engine or by all ranks, one update at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from recgrad.config import PipelineConfig
from recgrad.data.batch import Batch
from recgrad.data.features.build import features_of
from recgrad.data.loader import build_loader
from recgrad.models.targets import find_targets
from recgrad.training.assembly import Training, build_training
from recgrad.training.processes import Processes
from recgrad.training.runtime import seed_everything, set_threads
from recgrad.training.signals import StopRequest
from recgrad.training.synchronize import share_losses

RANKS, BATCH, BATCHES = 2, 8192, 4
STEPS = 2  # in a row, each time that a variant's turn has come
Step = Callable[[int], Any]


class Clock:
    """Seconds of a step, of the wall or of this process's work."""

    def __init__(self, cpu_time: bool) -> None:
        self.now = time.process_time if cpu_time else time.perf_counter

    def seconds(self, step: Step, first: int, threads: int) -> float:
        set_threads(threads)
        begin = self.now()
        for i in range(first, first + STEPS):
            step(i)
        return (self.now() - begin) / STEPS


def read_batches(config: PipelineConfig, processes: Processes, rows: int) -> list[Batch]:
    """This rank's first batches of some rows."""
    own = type(config)()
    own.CopyFrom(config)
    own.data_config.batch_size = rows
    loader = build_loader(
        own,
        own.train_input_path,
        features=features_of(own),
        targets=find_targets(own),
        training=True,
        rank=processes.rank,
        world_size=processes.world_size,
    )
    return list(islice(loader.epoch(0), BATCHES))


class Run:
    """A training on batches in memory, by the local engine or by all ranks with one plan."""

    def __init__(self, config: PipelineConfig, processes: Processes, plan: str = "") -> None:
        own = type(config)()
        own.CopyFrom(config)
        if plan:
            own.train_config.global_embedding_constraints.sharding_types.append(plan)
        seed_everything(1)
        self.processes = processes
        self.training: Training = build_training(own, processes)
        self.engine: Any = self.training.task.model.engine
        self.names = list(self.engine.features.lookups if processes.distributed else self.engine.lookups)
        self.batches = read_batches(config, processes, BATCH)
        self.training.task.train()
        self.stop = StopRequest()
        self.gradient = torch.full((1, 1), 1e-4)

    def step(self, i: int) -> float:
        """An update as the trainer makes it."""
        return self.train(self.batches[i % BATCHES])

    def train(self, batch: Batch) -> float:
        """An update with a batch; the loss of all ranks. Ids are sent in it, not ahead of it."""
        task, updater = self.training.task, self.training.updater
        losses = task.losses(task(batch), batch)
        values = {name: float(loss.detach()) for name, loss in losses.items()}
        shared = share_losses(self.processes, self.stop, batch.size, values)
        updater.backward(losses["total"] if shared.share == 1 else losses["total"] * shared.share)
        updater.step()
        return shared.losses["total"]

    def tables_step(self, i: int) -> None:
        """An update of the tables alone."""
        output = self.engine(self.batches[i % BATCHES].sparse).pooled(self.names)
        output.backward(self.gradient.expand_as(output))
        assert self.training.sparse_optimizer is not None
        self.training.sparse_optimizer.step()


def check_rows(local: Run, found: Sequence[tuple[np.ndarray, np.ndarray]], rtol: float, atol: float) -> None:
    """End the program when tables are not what the local engine has learned."""
    for name, (numbers, weights) in zip(local.engine.tables, found, strict=True):
        expected, values = local.engine.export_table(name)
        order = np.argsort(numbers)
        np.testing.assert_array_equal(numbers[order], expected, err_msg=name)
        np.testing.assert_allclose(weights[order], values, rtol=rtol, atol=atol, err_msg=name)
