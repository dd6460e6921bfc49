"""Evaluation: every metric of every task over one pass of a loader."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice

import torch

from recgrad.data.batch import Batch
from recgrad.data.loader import Loader
from recgrad.training.processes import Processes
from recgrad.training.signals import StopRequest
from recgrad.training.synchronize import even_batches
from recgrad.training.task import Task

_log = logging.getLogger("recgrad.training")


def evaluate(
    task: Task,
    loader: Loader,
    *,
    num_steps: int = 0,
    log_every_steps: int = 0,
    stop: StopRequest | None = None,
    processes: Processes | None = None,
) -> dict[str, float]:
    """The metrics by name over `num_steps` batches, or fewer if there are no more (0: all of them).

    The task comes back in the mode it was in; its training metrics and generators are untouched.
    Several ranks share the batches, equally many each and so rounded up; the metrics are those of all
    their rows.

    Raises:
        InterruptedBySignal: `stop` was asked for; there are no metrics of a part of the data.
    """
    stop = stop or StopRequest()
    processes = processes or Processes()
    was_training = task.training
    task.eval()
    task.reset_metrics()
    try:
        with torch.inference_mode():
            own = _limited(loader, -(-num_steps // processes.world_size))
            batches = even_batches(own, loader, processes, stop, ask=True)
            for number, batch in enumerate(batches, 1):
                stop.check()
                task.update_metrics(task(batch), batch)
                if log_every_steps and number % log_every_steps == 0:
                    _log.info("evaluated %d batches", number)
        stop.check()
        return task.compute_metrics()
    finally:
        task.train(was_training)


def _limited(loader: Loader, num_steps: int) -> Iterator[Batch]:
    batches = loader.epoch(0)
    return islice(batches, num_steps) if num_steps else batches
