"""What training with several processes costs and gains: ranks of this machine, over gloo.

    python benchmarks/distributed.py [--json FILE] [--rounds N] [--cpu-time]

The model is the DeepFM of benchmarks/train.py (26 id features, dims 16 and 4, deep 512-256-128); the
updates are those of a run on batches held in memory.

1. One rank with the sharded engine over one process with the local one: whole steps, and the
   tables alone. Both run in turn in one process, after they were shown to learn the same rows.
2. Two ranks with one thread each over one process with one thread, with two, and over two processes
   that know nothing of each other: what the cores can do together. Weak: each rank has as many rows as
   the process alone; strong: the ranks share them. Processes alone have the local engine, which is
   the faster peer. All run in turn in the same two processes, after tables were compared.
3. Where the time of a step of two ranks goes, and the bytes that a rank sends, by phase. Waiting for a
   slower rank counts to the phase that waits. What is counted must be what the plan says.

Ids are sent in the step that needs them, so that their phase can be told apart; a run sends them in the step
before, and benchmarks/ahead.py has what that brings.

The bars are where several processes stop being worth while: the sharded engine takes at most 1.3 times
the time with one rank, and two ranks (tables whole, as by default) reach at least three quarters of what
two processes apart do. Medians of rounds. With --cpu-time the CPU time of processes is compared
instead, for machines that are busy with other things: the slower rank counts, but not what ranks
wait for each other. Bytes are what ring algorithms send to others.
"""

from __future__ import annotations

import argparse
import gc
import json
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from train import bar, criteo_config

from recgrad.config import PipelineConfig
from recgrad.data.batch import Batch
from recgrad.data.loader import build_loader
from recgrad.data.synth import write_synth
from recgrad.embedding.sharded.exchange import Exchange
from recgrad.training.assembly import Training, build_training, features_of
from recgrad.training.processes import Environment, Processes
from recgrad.training.runtime import keep_freed_memory, seed_everything, use_all_cores
from recgrad.training.signals import StopRequest
from recgrad.training.synchronize import share_losses

RANKS, BATCH, BATCHES = 2, 8192, 4
PLANS = ("table_wise", "row_wise")
STEPS = 2  # in a row, each time that a variant's turn has come
CHECKED_STEPS = 3
ONE_RANK, TWO_RANKS = 1.3, 0.75
COLLECTIVES = (
    "all_to_all_single", "all_reduce", "all_gather", "all_gather_single", "all_gather_into_tensor",
    "reduce_scatter", "reduce_scatter_tensor",
)  # fmt: skip
Step = Callable[[int], Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true")
    args = parser.parse_args()
    what = "CPU time" if args.cpu_time else "time"
    print(f"batch {BATCH:,} a rank, gloo over 127.0.0.1, torch {torch.__version__}, {what}\n")
    bars: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        write_synth(folder, RANKS * BATCHES * BATCH)
        for ranks, function in ((1, against_local), (RANKS, several_ranks)):
            found = Path(folder) / "bars.json"
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            given = (ranks, port, function, Path(folder), args.rounds, args.cpu_time, found)
            mp.spawn(one_rank, given, ranks)
            bars += json.loads(found.read_text())
    print()
    for one in bars:
        print(
            f"{'ok ' if one['holds'] else 'NO '} {one['name']:<60} {one['ratio']:8.3f}   goal {one['goal']}"
        )
    if args.json:
        args.json.write_text(json.dumps(bars, indent=2) + "\n")
    return 0


class Clock:
    """Seconds of a step, of the wall or of this process's work."""

    def __init__(self, cpu_time: bool) -> None:
        self.now = time.process_time if cpu_time else time.perf_counter

    def seconds(self, step: Step, first: int, threads: int) -> float:
        use_all_cores(threads)
        begin = self.now()
        for i in range(first, first + STEPS):
            step(i)
        return (self.now() - begin) / STEPS


def one_rank(
    rank: int, ranks: int, port: int, function: Any, folder: Path, rounds: int, cpu_time: bool, found: Path
) -> None:
    """A process of the group: what `function` finds goes to `found`."""
    keep_freed_memory()
    use_all_cores(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    environment = Environment(rank, ranks, rank, ranks, "127.0.0.1", port, distributed=True)
    bars = function(Processes(environment), criteo_config(folder), rounds, Clock(cpu_time))
    if rank == 0:
        found.write_text(json.dumps(bars))
    dist.barrier()
    gc.collect()  # TorchRec's modules hold the group, whose threads must end before Python does
    dist.destroy_process_group()


def read_batches(config: PipelineConfig, processes: Processes, rows: int) -> list[Batch]:
    """This rank's first batches of some rows."""
    own = type(config)()
    own.CopyFrom(config)
    own.data_config.batch_size = rows
    loader = build_loader(
        own,
        own.train_input_path,
        features=features_of(own),
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


# --- one rank against the local engine ---


def against_local(
    processes: Processes, config: PipelineConfig, rounds: int, clock: Clock
) -> list[dict[str, Any]]:
    """The sharded engine's time over the local one's, with one rank and one thread."""
    local, sharded = Run(config, Processes()), Run(config, processes)
    for i in range(CHECKED_STEPS):
        np.testing.assert_allclose(sharded.step(i), local.step(i), rtol=1e-6)
    check_rows(
        local, [sharded.engine.export_table(name) for name in local.engine.tables], rtol=1e-5, atol=1e-6
    )
    steps = {"whole": (local.step, sharded.step), "tables": (local.tables_step, sharded.tables_step)}
    bars = []
    print("one rank, one thread         local ms   sharded ms")
    for name, label in (("whole", "whole DeepFM step"), ("tables", "tables alone")):
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(rounds + 1):
            for own, step in zip(times, steps[name], strict=True):
                own.append(clock.seconds(step, turn * STEPS, 1))
        mine, other = (median(own[1:]) for own in times)  # the first round warms
        print(f"{label:28} {1000 * mine:8.1f}   {1000 * other:10.1f}", flush=True)
        if name == "whole":
            bars.append(
                bar("sharded engine, one rank: time of a step", other / mine, ONE_RANK, at_least=False)
            )
        else:
            print(f"{'':28} the tables' step takes {other / mine:.2f} times as long")
    return bars


def check_rows(local: Run, found: Sequence[tuple[np.ndarray, np.ndarray]], rtol: float, atol: float) -> None:
    """End the program when tables are not what the local engine has learned."""
    for name, (numbers, weights) in zip(local.engine.tables, found, strict=True):
        expected, values = local.engine.export_table(name)
        order = np.argsort(numbers)
        np.testing.assert_array_equal(numbers[order], expected, err_msg=name)
        np.testing.assert_allclose(weights[order], values, rtol=rtol, atol=atol, err_msg=name)


# --- two ranks ---


def several_ranks(
    processes: Processes, config: PipelineConfig, rounds: int, clock: Clock
) -> list[dict[str, Any]]:
    """Correctness, speed, and where the time goes."""
    runs = {plan: Run(config, processes, plan) for plan in PLANS}
    for run in runs.values():
        check_ranks(run, Run(config, Processes()))
    bars = scaling(
        Run(config, Processes()), runs, read_batches(config, processes, BATCH // RANKS), rounds, clock
    )
    for plan, run in runs.items():
        phases(run, plan, rounds)
    return bars


def scaling(
    alone: Run, runs: Mapping[str, Run], small: Sequence[Batch], rounds: int, clock: Clock
) -> list[dict[str, Any]]:
    """Rows a second of two ranks over one process; `small` are the batches of a strong step."""
    rank = dist.get_rank()
    cores = use_all_cores()
    variants: dict[str, tuple[Step | None, int, int]] = {  # step, threads, rows of all ranks
        "1 process, 1 thread": (None if rank else alone.step, 1, BATCH),
        f"1 process, {cores} threads": (None if rank else alone.step, cores, BATCH),
        f"{RANKS} processes apart": (alone.step, 1, RANKS * BATCH),
    }
    for plan, run in runs.items():
        variants[f"{RANKS} ranks, weak, {plan}"] = (run.step, 1, RANKS * BATCH)
    for plan, run in runs.items():
        step = partial(lambda own, i: own.train(small[i % BATCHES]), run)
        variants[f"{RANKS} ranks, strong, {plan}"] = (step, 1, BATCH)
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(rounds + 1):
        for name, (step, threads, _) in variants.items():
            dist.barrier()
            own = 0.0 if step is None else clock.seconds(step, turn * STEPS, threads)
            slowest = torch.tensor([own])
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            if turn:
                seconds[name].append(float(slowest))
    speed = {name: rows / median(seconds[name]) for name, (_, _, rows) in variants.items()}
    if rank:
        return []
    one, threads, apart, *together = speed
    print(f"\n{'':32} samples/s   × 1 thread   × {cores} threads   × {RANKS} apart")
    for name, value in speed.items():
        ratios = [value / speed[peer] for peer in (one, threads, apart)]
        print(f"{name:32} {value:9,.0f} {ratios[0]:12.2f} {ratios[1]:13.2f} {ratios[2]:11.2f}")
    sys.stdout.flush()
    return [
        bar(f"{name}, over {apart}", speed[name] / speed[apart], TWO_RANKS, at_least=True)
        for name in together
        if PLANS[0] in name
    ]


def check_ranks(run: Run, local: Run) -> None:
    """Tables after some updates of all ranks, against the local engine with all their rows in one update."""
    processes = run.processes
    both = list(zip(*processes.gather(run.batches), strict=True))
    for i in range(CHECKED_STEPS):
        run.tables_step(i)
        for batch in both[i]:  # gradients add up until the optimizer steps
            output = local.engine(batch.sparse).pooled(local.names)
            output.backward(local.gradient.expand_as(output) / processes.world_size)
        local.training.sparse_optimizer.step()  # type: ignore[union-attr]
    parts = processes.gather([run.engine.export_table(name) for name in local.engine.tables])
    whole = [tuple(np.concatenate(pieces) for pieces in zip(*of_table)) for of_table in zip(*parts)]
    check_rows(local, whole, rtol=1e-4, atol=1e-6)  # type: ignore[arg-type]


# --- where time and bytes go ---


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
        """The phase that a collective belongs to: in backward, only tables have some."""
        return "vectors' gradients" if self.now == "dense backward" else self.now

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
    use_all_cores(1)
    steps = []
    for i in range(2 * rounds + 1):
        dist.barrier()
        found = Phases()
        measured_step(run, i, found)
        steps.append((found.seconds, found.sent, found.calls))
    everyone = run.processes.gather(steps[1:])
    if run.processes.is_main:
        show_phases(run, plan, everyone)


def measured_step(run: Run, i: int, found: Phases) -> None:
    """`Run.step` in phases."""
    module: Any = run.engine._parallel[0].module["pooled"]
    task, updater, batch = run.training.task, run.training.updater, run.batches[i % BATCHES]

    look_up = Exchange.look_up

    def vectors(exchange: Exchange) -> Any:
        with found.phase("vectors back"):
            return look_up(exchange).wait()

    with ExitStack() as stack:
        for kind in COLLECTIVES:
            counted = found.counted(kind, getattr(dist, kind))
            stack.enter_context(mock.patch.object(dist, kind, counted))
        stack.enter_context(mock.patch.object(dist.Work, "wait", found.waiting(dist.Work.wait)))
        for name in ("__init__", "send", "arrive"):
            timed = found.timed("ids to their tables", getattr(Exchange, name))
            stack.enter_context(mock.patch.object(Exchange, name, timed))
        stack.enter_context(mock.patch.object(Exchange, "look_up", vectors))
        for lookup in module._lookups:
            stack.enter_context(mock.patch.object(lookup, "forward", found.timed("lookup", lookup.forward)))
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


def show_phases(run: Run, plan: str, everyone: Sequence[Any]) -> None:
    """A line for each phase: milliseconds of the ranks, and what a rank sends in it."""
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
    for name in ("vectors back", "vectors' gradients"):
        sent = median([sum(n for (phase, _), n in step[1].items() if phase == name) for step in first])
        assert sent == expected_vectors(run, plan), f"{name}: {sent} bytes counted, but not planned"


def expected_vectors(run: Run, plan: str) -> float:
    """Bytes of pooled vectors that rank 0 sends, from the plan alone."""
    tables = run.engine.tables.values()
    # Row-wise, a rank has partial sums of all bags of the others.
    width = sum(table.spec.dim for table in tables if plan == "row_wise" or table.shards)
    return (RANKS - 1) * BATCH * 4 * width


if __name__ == "__main__":
    sys.exit(main())
