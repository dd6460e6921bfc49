"""What training with several processes costs and gains: ranks of this machine, through shared memory or gloo.

    python benchmarks/distributed.py [--json FILE] [--rounds N] [--cpu-time] [--gloo]

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
the time with one rank, and two ranks (tables whole, as by default) reach at least .9 of one process with
as many threads. Medians of rounds. With --cpu-time the CPU time of processes is compared
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
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from ranks.phases import phases
from ranks.run import BATCH, BATCHES, RANKS, STEPS, Clock, Run, Step, check_rows, read_batches
from results.bars import Bar, describe_bar, write_bars
from train import criteo_config

from recgrad.config import PipelineConfig
from recgrad.data.batch import Batch
from recgrad.synth import write_synth
from recgrad.training.processes import Environment, Processes
from recgrad.training.runtime import set_up_process

PLANS = ("table_wise", "row_wise")
CHECKED_STEPS = 3
ONE_RANK, TWO_RANKS = 1.3, 0.9


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--gloo", action="store_true", help="ranks exchange by gloo, as on several machines")
    args = parser.parse_args()
    what = "CPU time" if args.cpu_time else "time"
    way = "gloo over 127.0.0.1" if args.gloo else "shared memory"
    print(f"batch {BATCH:,} a rank, {way}, torch {torch.__version__}, {what}\n")
    bars: list[Bar] = []
    with tempfile.TemporaryDirectory() as folder:
        write_synth(folder, RANKS * BATCHES * BATCH)
        for ranks, function in ((1, against_local), (RANKS, several_ranks)):
            found = Path(folder) / "bars.json"
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            given = (ranks, port, function, Path(folder), args.rounds, args.cpu_time, args.gloo, found)
            mp.spawn(one_rank, given, ranks)
            bars += [Bar(**fields) for fields in json.loads(found.read_text())]
    print()
    print("\n".join(map(describe_bar, bars)))
    write_bars(args.json, bars)
    return 0


def one_rank(
    rank: int,
    ranks: int,
    port: int,
    function: Any,
    folder: Path,
    rounds: int,
    cpu_time: bool,
    gloo: bool,
    found: Path,
) -> None:
    """A process of the group: what `function` finds goes to `found`."""
    set_up_process(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=ranks)
    environment = Environment(rank, ranks, rank, ranks, "127.0.0.1", port, distributed=True)
    processes = Processes(environment)
    if not gloo:
        processes.share_memory()
    bars = function(processes, criteo_config(folder), rounds, Clock(cpu_time))
    if rank == 0:
        found.write_text(json.dumps([asdict(one) for one in bars]))
    dist.barrier()
    gc.collect()  # TorchRec's modules hold the group, whose threads must end before Python does
    dist.destroy_process_group()


# --- one rank against the local engine ---


def against_local(processes: Processes, config: PipelineConfig, rounds: int, clock: Clock) -> list[Bar]:
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
                Bar("sharded engine, one rank: time of a step", other / mine, ONE_RANK, at_least=False)
            )
        else:
            print(f"{'':28} the tables' step takes {other / mine:.2f} times as long")
    return bars


# --- two ranks ---


def several_ranks(processes: Processes, config: PipelineConfig, rounds: int, clock: Clock) -> list[Bar]:
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
) -> list[Bar]:
    """Rows a second of two ranks over one process; `small` are the batches of a strong step."""
    rank = dist.get_rank()
    cores = set_up_process()
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
        Bar(f"{name}, over {threads}", speed[name] / speed[threads], TWO_RANKS, at_least=True)
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


if __name__ == "__main__":
    sys.exit(main())
