"""How many threads a training step is worth.

Sharing a step among threads costs some fifty meetings of theirs. A small step does not win that back even on
free cores, and beside busy processes, where a thread that is late keeps all others waiting, it loses a lot:

    work of a step  = rows x (dense weights + WORK_PER_VALUE x values of embeddings)    multiply-adds
    threads         = work / WORK_PER_THREAD, at least 1, at most those that there are

The number goes by the config alone, never by what the machine does just now: torch's products depend on it.
"""

from __future__ import annotations

import logging

import torch

from recgrad.models.base import Model
from recgrad.training.runtime import set_threads, threads_are_free

WORK_PER_THREAD = 20_000_000
"""Multiply-adds of the forward pass: about a millisecond of a core."""
WORK_PER_VALUE = 16
"""What looking up and updating a value of an embedding costs, in multiply-adds."""

_log = logging.getLogger("recgrad.training")


def fit_threads(model: Model, rows: int) -> None:
    """Take fewer threads for a small step, where nobody has said how many there should be."""
    before = torch.get_num_threads()
    threads = threads_for(model, rows, most=before)
    if threads_are_free() and threads != before:
        set_threads(threads)
        _log.info(
            "a step of %d rows is too small to be shared by %d threads: %d; --num_threads says otherwise",
            rows,
            before,
            threads,
        )


def threads_for(model: Model, rows: int, most: int) -> int:
    """How many threads of `most` to take for steps of so many rows.

    All of them where histories are read: their length, and so the work, is in the data.
    """
    plan = model.groups.plan
    if any(lookup.sequence for lookup in plan.lookups):
        return most
    dims = {table.name: table.dim for table in plan.tables}
    values = sum(dims[lookup.table] for lookup in plan.lookups)
    weights = sum(parameter.numel() for parameter in model.parameters())
    return max(1, min(most, rows * (weights + WORK_PER_VALUE * values) // WORK_PER_THREAD))
