"""Where the time of a step of several ranks goes, and the bytes that a rank sends, by phase."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from ranks.run import BATCH, BATCHES, RANKS, Run

from recgrad.data.batch import Batch
from recgrad.embedding.sharded.ids import Exchange
from recgrad.embedding.sharded.kernel import ShardKernel
from recgrad.embedding.sharded.whole_tables import BagExchange, HeldBags
from recgrad.embedding.sharded.whole_tables.outgoing import ROWS_OF_ID
from recgrad.training.processes.shared_group import SharedWork
from recgrad.training.runtime import set_threads
from recgrad.training.synchronize import share_losses

COLLECTIVES = (
    "all_to_all_single", "all_reduce", "all_gather", "all_gather_single", "all_gather_into_tensor",
    "reduce_scatter", "reduce_scatter_tensor",
)  # fmt: skip

OF_TABLES = {
    "dense forward": "vectors back",
    "dense backward": "vectors' gradients",
    "update": "vectors' gradients",
}


class Phases:
    """Seconds and bytes of the phases of steps, and of the collectives within them."""

    def __init__(self) -> None:
        self.now = "other"
        self.seconds: dict[str, float] = {}
        self.sent: dict[tuple[str, str], int] = {}
        self.calls: dict[tuple[str, str], int] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Time in here is this phase's, and no longer that of the one around it."""
        outer, self.now = self.now, name
        begin = time.perf_counter()
        yield
        spent = time.perf_counter() - begin
        self.seconds[name] = self.seconds.get(name, 0.0) + spent
        self.seconds[outer] = self.seconds.get(outer, 0.0) - spent
        self.now = outer

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.phase(name):
                return function(*args, **kwargs)

        return call

    def of_collective(self) -> str:
        """The phase that a collective belongs to: what tables exchange is waited for where it is needed."""
        return OF_TABLES.get(self.now, self.now)

    def counted(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.phase(self.of_collective()):
                key = (self.now, kind)
                self.sent[key] = self.sent.get(key, 0) + bytes_sent(kind, *args, **kwargs)
                self.calls[key] = self.calls.get(key, 0) + 1
                return function(*args, **kwargs)

        return call

    def waiting(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            with self.phase(self.of_collective()):
                return wait(*args, **kwargs)

        return call


def nbytes(tensors: Any) -> int:
    parts = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
    return sum(part.numel() * part.element_size() for part in parts)


def bytes_sent(kind: str, *args: Any, **kwargs: Any) -> int:
    """What leaves this rank for others in a collective, by a ring or directly."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if kind == "all_reduce":
        return 2 * nbytes(args[0] if args else kwargs["tensor"]) * (ranks - 1) // ranks
    given = kwargs.get(
        "input", kwargs.get("input_list", kwargs.get("tensor", args[1] if len(args) > 1 else None))
    )
    size = nbytes(given)
    if kind.startswith("all_gather"):
        return size * (ranks - 1)
    splits = kwargs.get("input_split_sizes")
    if splits:
        return size * (sum(splits) - splits[rank]) // max(sum(splits), 1)
    return size * (ranks - 1) // ranks


def phases(run: Run, plan: str, rounds: int) -> None:
    """Print where the time of a step of two ranks goes."""
    set_threads(1)
    steps = []
    for i in range(2 * rounds + 1):
        dist.barrier()
        found = Phases()
        measured_step(run, i, found)
        steps.append((found.seconds, found.sent, found.calls))
    everyone = run.processes.gather(steps[1:])
    expected = expected_vectors(run, plan)
    if run.processes.is_main:
        show_phases(plan, everyone, expected)


def measured_step(run: Run, i: int, found: Phases) -> None:
    """`Run.step` in phases."""
    task, updater, batch = run.training.task, run.training.updater, run.batches[i % BATCHES]

    def vectors(look_up: Callable[..., Any]) -> Callable[..., Any]:
        def call(exchange: Any) -> Any:
            with found.phase("vectors back"):
                bags = look_up(exchange)
                return bags if isinstance(bags, HeldBags) else bags.wait()

        return call

    with ExitStack() as stack:
        for collective in COLLECTIVES:
            counted = found.counted(collective, getattr(dist, collective))
            stack.enter_context(mock.patch.object(dist, collective, counted))
        for work in (dist.Work, SharedWork):
            stack.enter_context(mock.patch.object(work, "wait", found.waiting(work.wait)))
        for kind in (Exchange, BagExchange):
            for name in ("__init__", "send", "arrive"):
                timed = found.timed("ids to their tables", getattr(kind, name))
                stack.enter_context(mock.patch.object(kind, name, timed))
            stack.enter_context(mock.patch.object(kind, "look_up", vectors(kind.look_up)))
        for name in ("forward", "look_up"):
            timed = found.timed("lookup", getattr(ShardKernel, name))
            stack.enter_context(mock.patch.object(ShardKernel, name, timed))
        if updater.synchronize is not None:
            timed = found.timed("gradient average", updater.synchronize)
            stack.enter_context(mock.patch.object(updater, "synchronize", timed))
        engine = found.timed("prepare ids", run.engine.forward)
        stack.enter_context(mock.patch.object(run.engine, "forward", engine))
        with found.phase("dense forward"):
            losses = task.losses(task(batch), batch)
            values = {name: float(loss.detach()) for name, loss in losses.items()}
        with found.phase("losses of all ranks"):
            shared = share_losses(run.processes, run.stop, batch.size, values)
        with found.phase("dense backward"):
            updater.backward(losses["total"] * shared.share)
        with found.phase("update"):
            updater.step()


def show_phases(plan: str, everyone: Sequence[Any], expected: Sequence[Sequence[int]]) -> None:
    """A line for each phase: milliseconds of the ranks, and what a rank sends in it, as expected."""
    first = everyone[0]
    names = [name for name in first[0][0] if name != "other"]
    total = sum(median([step[0].get(name, 0.0) for step in first]) for name in names)
    print(f"\n{RANKS} ranks, {plan}: {1000 * total:.1f} ms a step\n")
    print("phase                      ms, rank 0 … 1    sent, MB, rank 0 … 1   by")
    for name in names:
        spent = [1000 * median([step[0].get(name, 0.0) for step in own]) for own in everyone]
        sent = [
            median([sum(n for (phase, _), n in step[1].items() if phase == name) for step in own]) / 2**20
            for own in everyone
        ]
        kinds = ", ".join(f"{n} {kind}" for (phase, kind), n in first[0][2].items() if phase == name)
        print(f"{name:24} {spent[0]:8.1f} {spent[1]:8.1f}   {sent[0]:10.3f} {sent[1]:10.3f}   {kinds}")
    sys.stdout.flush()
    for name, of_batch in zip(("vectors back", "vectors' gradients"), expected):
        sent = [sum(n for (phase, _), n in step[1].items() if phase == name) for step in first]
        planned = [of_batch[i % BATCHES] for i in range(1, len(sent) + 1)]
        assert sent == planned, f"{name}: {sent} bytes counted, but {planned} planned"


def expected_vectors(run: Run, plan: str) -> tuple[list[int], list[int]]:
    """Bytes of pooled vectors and of their gradients that rank 0 sends, by batch, from plan and ids alone."""
    tables = run.engine.tables
    if plan == "row_wise":  # a rank has partial sums of all bags of the others
        size = (RANKS - 1) * BATCH * 4 * sum(table.spec.dim for table in tables.values())
        return [size] * BATCHES, [size] * BATCHES
    wanted = run.processes.gather([bags_by_key(batch) for batch in run.batches])
    features = {(spec.table, spec.key) for spec in run.engine.lookups.values()}
    vectors, gradients = [0] * BATCHES, [0] * BATCHES
    for table, key in features:
        spec, held = tables[table].spec, bool(tables[table].shards)
        for i in range(BATCHES):
            others = sum(of_rank[i][key] for of_rank in wanted[1:])
            vectors[i] += 4 * spec.dim * others if held else 0
            gradients[i] += 0 if held else 4 * spec.dim * wanted[0][i][key]
    return vectors, gradients


def bags_by_key(batch: Batch) -> dict[str, int]:
    """How many vectors a rank needs of each key: one for an id, or for a row where ids hardly repeat."""
    ids = batch.sparse
    distinct = {key: len(ids[key].values.unique()) for key in ids.keys}
    return {
        key: count if count <= batch.size // ROWS_OF_ID else batch.size for key, count in distinct.items()
    }
