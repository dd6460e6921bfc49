"""The weights that evaluation, checkpoints and export see, where they differ from those in training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from recgrad.training.assembly import Training
from recgrad.training.signals import StopRequest
from recgrad.training.synchronize import Averager, even_batches, rested_norms

BATCH_NORM_BATCHES = 20


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
