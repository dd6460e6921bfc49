"""The weights that evaluation, checkpoints and export see, where they differ from those in training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

from recgrad.optim.averaging import reestimated_batch_norm
from recgrad.training.assembly import Training

BATCH_NORM_BATCHES = 20


@contextmanager
def evaluated_weights(training: Training) -> Iterator[None]:
    """The averaged weights (EMA, schedule-free), with BatchNorm statistics that fit them."""
    updater = training.updater
    if updater.ema is not None and not training.evaluate_ema:
        yield
        return
    with updater.averaged():
        if not updater.reestimates_batch_norm:
            yield
            return
        with reestimated_batch_norm(training.task, lambda: _run_some_batches(training)):
            yield


def _run_some_batches(training: Training) -> None:
    for batch in islice(training.train_loader.epoch(0), BATCH_NORM_BATCHES):
        training.task(batch)
