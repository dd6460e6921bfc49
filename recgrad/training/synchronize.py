"""What the ranks of a run share in an update: gradients, statistics, the sizes of their batches."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from recgrad.data.batch import Batch
from recgrad.data.loader import Loader
from recgrad.optim.roles import batch_norms
from recgrad.training.dense_state import is_dense
from recgrad.training.processes import Processes
from recgrad.training.signals import StopRequest


@dataclass(frozen=True)
class Shared:
    """A micro-batch over all ranks.

    Attributes:
        rows: of all ranks together.
        share: what this rank's mean loss is to be multiplied by, so that the mean over ranks is that
            over all rows.
        losses: the terms, as means over all rows.
        broken: ranks whose loss is not finite.
        flags: the sums of the ranks' flags.
    """

    rows: int
    share: float
    losses: Mapping[str, float]
    broken: int
    flags: tuple[float, ...] = ()


def share_losses(
    processes: Processes,
    stop: StopRequest,
    rows: int,
    losses: Mapping[str, float],
    flags: Sequence[float] = (),
) -> Shared:
    """Exchange rows, losses, signals, and flags of one's own.

    This is the one collective of a micro-batch beside the tables'.
    """
    finite = {name: value for name, value in losses.items() if math.isfinite(value)}
    broken = float(len(finite) < len(losses))
    if not processes.distributed:
        return Shared(rows, 1.0, losses, int(broken), tuple(flags))
    weighted = [rows * finite.get(name, 0.0) for name in losses]
    signals = stop.flags()
    found = iter(processes.sum([rows, broken, *signals, *flags, *weighted]))
    total, bad = islice(found, 2)
    stop.agree(list(islice(found, len(signals))))
    flagged = tuple(islice(found, len(flags)))
    means = {name: value / max(total, 1.0) for name, value in zip(losses, found, strict=True)}
    share = rows * processes.world_size / total if total else 0.0
    return Shared(int(total), share, means, int(bad), flagged)


def even_batches(
    batches: Iterator[Batch], loader: Loader, processes: Processes, stop: StopRequest, *, ask: bool
) -> Iterator[Batch]:
    """The batches of this rank, and batches of no rows while other ranks still have some.

    Args:
        batches: of this rank.
        loader: that they come from.
        processes: all ranks.
        stop: signals are agreed on with the question.
        ask: whether ranks may differ in the number of batches; else none is asked.
    """
    if not processes.distributed or not ask:
        yield from batches
        return
    while True:
        batch = next(batches, None)
        having, *flags = processes.sum([float(batch is not None), *stop.flags()])
        stop.agree(flags)
        if not having:
            return
        yield loader.empty_batch() if batch is None else batch


@contextmanager
def rested_norms(processes: Processes, task: nn.Module, rows: int) -> Iterator[None]:
    """Let BatchNorm go by its running statistics where a rank's batch has no variance; it would refuse."""
    varies = processes.world_size == 1 or rows > 1  # one process is given no batch of one row
    norms = [] if varies else [norm for norm in batch_norms(task) if norm.training]
    for norm in norms:
        norm.eval()
    try:
        yield
    finally:
        for norm in norms:
            norm.train()


class Averager:
    """Averages the dense gradients over the ranks, and with them BatchNorm's running statistics.

    Each rank normalises by its own batch; the statistics that evaluation sees are those of all.
    """

    def __init__(self, processes: Processes, model: nn.Module) -> None:
        self._processes = processes
        own = [buffer for name, buffer in model.named_buffers() if is_dense(name)]
        self._buffers = [buffer for buffer in own if buffer.is_floating_point()]
        self._counts = [norm.num_batches_tracked for norm in batch_norms(model)]

    def gradients(self, parameters: Sequence[nn.Parameter]) -> None:
        """Make each gradient its mean over the ranks; one that no rank has stays away."""
        device = parameters[0].device if parameters else torch.device("cpu")
        present = torch.tensor([float(p.grad is not None) for p in parameters], device=device)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
        self._average([present, *gradients])
        for parameter, gradient, anywhere in zip(parameters, gradients, present.tolist(), strict=True):
            parameter.grad = gradient if anywhere else None

    def statistics(self) -> None:
        """Average the statistics alone."""
        self._average([])

    def _average(self, tensors: Sequence[Tensor]) -> None:
        """Average tensors, statistics, and how many batches these are of, rounded up."""
        counts = [count.float() for count in self._counts if count is not None]
        self._processes.average_([*tensors, *self._buffers, *counts])
        for own, mean in zip((c for c in self._counts if c is not None), counts, strict=True):
            own.copy_(mean.ceil())
