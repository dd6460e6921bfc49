"""Evaluation: every metric of every task over one pass of a loader, and the weights that it sees.

Checkpoints and export see the same weights: those of an average, where one is kept.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice

import torch

from recgrad.data.batch import Batch
from recgrad.data.loader import Loader
from recgrad.training.assembly import Training
from recgrad.training.catalogue import CatalogueEvaluation
from recgrad.training.processes import Processes
from recgrad.training.signals import StopRequest
from recgrad.training.synchronize import Averager, even_batches, rested_norms
from recgrad.training.task import Outputs, Task

_log = logging.getLogger("recgrad.training")

BATCH_NORM_BATCHES = 20
Progress = Callable[[int, int | None], None]
"""Takes the number of batches that are done, and of all, where it is known."""


def evaluate(
    task: Task,
    loader: Loader,
    *,
    num_steps: int = 0,
    progress: Progress | None = None,
    stop: StopRequest | None = None,
    processes: Processes | None = None,
    catalogue: CatalogueEvaluation | None = None,
) -> dict[str, float]:
    """The metrics by name over `num_steps` batches, or fewer if there are no more (0: all of them).

    The task comes back in the mode it was in; its training metrics and generators are untouched.
    Several ranks share the batches, equally many each and so rounded up; the metrics are those of all
    their rows. `progress` is told of each batch. With `catalogue` its measures are among them, of all
    of its queries; where there are no others, no batch is read.

    Raises:
        InterruptedBySignal: `stop` was asked for; there are no metrics of a part of the data.
    """
    stop = stop or StopRequest()
    processes = processes or Processes()
    total = loader.num_batches
    if num_steps:
        total = num_steps if total is None else min(num_steps, total)
    was_training = task.training
    task.eval()
    task.reset_metrics()
    try:
        if catalogue is None or any(head.metrics for head in task.each_head()):
            with torch.inference_mode():
                own = _limited(loader, -(-num_steps // processes.world_size))
                batches = even_batches(own, loader, processes, stop, ask=True)
                for number, batch in enumerate(batches, 1):
                    stop.check()
                    outputs = task(batch)
                    task.update_metrics(outputs, batch)
                    _say_sampled(task, outputs, processes)
                    if progress is not None:
                        progress(number, total)
        stop.check()
        metrics = task.compute_metrics()
        return metrics if catalogue is None else {**metrics, **catalogue.run(stop)}
    finally:
        task.train(was_training)


def _say_sampled(task: Task, outputs: Outputs, processes: Processes) -> None:
    """Say once of what the ranks of a retrieval model are: such numbers are easily taken for more."""
    spec = task.model.tasks[0]
    if not spec.retrieval or not spec.metrics or task.said_sampled:
        return
    task.said_sampled = True
    if processes.is_main:
        names = ", ".join(metric.display_name for metric in spec.metrics)
        _log.info(
            "%s: sampled, among %d items a row (its own and drawn ones), so it is above what the whole "
            "catalogue would give; eval_config.catalogue ranks all items",
            names,
            outputs[spec.logits].shape[1],
        )


def _limited(loader: Loader, num_steps: int) -> Iterator[Batch]:
    batches = loader.epoch(0)
    return islice(batches, num_steps) if num_steps else batches


@contextmanager
def evaluated_weights(training: Training, stop: StopRequest | None = None) -> Iterator[None]:
    """The averaged weights (EMA, schedule-free), with BatchNorm statistics that fit them.

    Raises:
        InterruptedBySignal: `stop` was asked for while the statistics were gathered.
    """
    updater = training.updater
    if updater.ema is not None and not training.evaluate_ema:
        yield
        return
    with updater.averaged():
        if not updater.reestimates_batch_norm:
            yield
            return
        with training.batch_norm.applied(
            training.task, updater.num_updates, lambda: _run_some_batches(training, stop or StopRequest())
        ):
            yield


def _run_some_batches(training: Training, stop: StopRequest) -> None:
    """Forward passes alone; several ranks make as many, and their statistics are averaged."""
    loader, processes = training.train_loader, training.processes
    own = islice(loader.epoch(0), BATCH_NORM_BATCHES)
    for batch in even_batches(own, loader, processes, stop, ask=True):
        stop.check()
        with rested_norms(processes, training.task, batch.size):
            training.task(batch)
    Averager(processes, training.task.model).statistics()
