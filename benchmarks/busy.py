"""Training beside other busy processes: the default number and kind of threads against the alternatives.

    python benchmarks/busy.py [--json FILE] [--rounds N] [--seconds S] [--busy 0,1,2,4]

DeepFM of the quickstart (13 numbers, 26 ids, dim 8, deep 128-64, final 32) on a synthetic parquet file,
batch 512: small batches have the most parallel regions a second, and so lose the most where threads wait
for each other. The whole loop is timed, reading, metrics and logging too, beside 0, 1, 2 and 4 processes that
compute all the time. The variants are processes of their own, started as the command starts, which
train in turn for some seconds each:

    default      as `recgrad train` without flags, without variables of OpenMP in the environment
    one thread   --num_threads 1
    all threads  --num_threads N, N being the cores
    spinning     the same, with waiting threads that spin, as libgomp has it by default

A bar is the throughput of the default over that of the best of the others: the median over rounds, in
each of which all have had their turn one after another, so that what else the machine does is the same.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr
from pathlib import Path
from statistics import median

from results.bars import Bar, describe_bar, write_bars

from recgrad.openmp import usable_cores

GOAL = 0.9
ROWS, BATCH = 200_000, 512
WARM_SECONDS = 1.0
LIBGOMP_SPINS = 300_000  # what libgomp does where nobody tells it how to wait
BURN = "x = 1\nwhile True:\n    x = x * 1103515245 % 2147483647"
OPENMP_VARIABLES = ("OMP_", "GOMP_", "KMP_")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--busy", default="0,1,2,4")
    parser.add_argument("--worker", nargs=2, metavar=("FOLDER", "THREADS"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(Path(args.worker[0]), int(args.worker[1]) or None)
    cores = usable_cores()
    print(f"{cores} cores; samples/s, medians of {args.rounds} turns of {args.seconds:g} s")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        prepare(Path(folder))
        spinning = {"GOMP_SPINCOUNT": str(LIBGOMP_SPINS)}
        variants = {
            "default": stack.enter_context(Worker(folder)),
            "one thread": stack.enter_context(Worker(folder, 1)),
            "all threads": stack.enter_context(Worker(folder, cores)),
            "spinning": stack.enter_context(Worker(folder, cores, spinning)),
        }
        for worker in variants.values():
            worker.train(WARM_SECONDS)
        bars = []
        print(f"{'busy processes':<16}" + "".join(f"{name:>14}" for name in variants))
        for busy in map(int, args.busy.split(",")):
            with burning(busy):
                speeds = in_turn(variants, args.rounds, args.seconds)
            print(f"{busy:<16}" + "".join(f"{median(speeds[name]):14,.0f}" for name in variants), flush=True)
            name = f"default beside {busy} busy processes, over the best of the others"
            bars.append(Bar(name, over_best(speeds), GOAL, at_least=True))
    print("\n" + "\n".join(map(describe_bar, bars)))
    write_bars(args.json, bars)
    return 0


def over_best(speeds: dict[str, list[float]]) -> float:
    """The default over the one that it is worst beside, each by the median of its rounds."""
    others = (found for name, found in speeds.items() if name != "default")
    return min(median(a / b for a, b in zip(speeds["default"], other, strict=True)) for other in others)


def in_turn(variants: dict[str, Worker], rounds: int, seconds: float) -> dict[str, list[float]]:
    """Samples a second of each, by round; every round begins with another."""
    speeds: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for round_ in range(rounds):
        first = round_ % len(names)
        for name in names[first:] + names[:first]:
            speeds[name].append(variants[name].train(seconds))
    return speeds


@contextmanager
def burning(count: int) -> Iterator[None]:
    """So many processes that keep a core busy each."""
    processes = [subprocess.Popen([sys.executable, "-c", BURN]) for _ in range(count)]
    time.sleep(0.5 if count else 0)
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


class Worker:
    """A process that trains when it is told to."""

    def __init__(self, folder: str, threads: int = 0, variables: dict[str, str] | None = None) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(OPENMP_VARIABLES)}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--worker", folder, str(threads)],
            env={**environment, **(variables or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def train(self, seconds: float) -> float:
        """Train for that long; returns samples a second."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(seconds, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


# --- in the processes that train ---


def prepare(folder: Path) -> None:
    """The data, written by a process of its own: torch must not be loaded here."""
    program = f"from recgrad.synth import write_synth; write_synth({str(folder)!r}, {ROWS})"
    subprocess.run([sys.executable, "-c", program], check=True)


def work(folder: Path, threads: int | None) -> int:
    """Train for as many seconds as each line of the input says, and print samples a second."""
    from recgrad.config import load_config
    from recgrad.training.assembly import build_hooks, build_training
    from recgrad.training.hook import Hook, StepReport
    from recgrad.training.hooks.checkpoints import SaveCheckpoints
    from recgrad.training.runtime import computing, set_up_process
    from recgrad.training.step_threads import fit_threads
    from recgrad.training.trainer import RunLength, Trainer

    class StopAfter(Hook):
        """Ends the run when the time is up."""

        def __init__(self, seconds: float) -> None:
            self.seconds = seconds
            self.started = self.ended = 0.0
            self.samples = 0

        def after_step(self, trainer: Trainer, report: StepReport) -> None:
            self.ended = time.perf_counter()
            if not self.started:  # the first step opens files and starts threads that read
                self.started = self.ended
                return
            self.samples += report.samples
            if self.ended - self.started > self.seconds:
                trainer.end("time is up")

    set_up_process(threads)
    config = load_config(folder / "deepfm.config")
    config.data_config.batch_size = BATCH
    config.train_config.use_tensorboard = False
    training = build_training(config)
    fit_threads(training.task.model, BATCH)
    for turn, line in enumerate(sys.stdin):
        watch = StopAfter(float(line))
        hooks: Sequence[Hook] = build_hooks(config, folder_of_turn(folder, turn))
        trainer = Trainer(
            task=training.task,
            loader=training.train_loader,
            updater=training.updater,
            length=RunLength(num_epochs=10**6),
            hooks=[*(hook for hook in hooks if not isinstance(hook, SaveCheckpoints)), watch],
        )
        with computing(), open(os.devnull, "w") as nowhere, redirect_stderr(nowhere):
            trainer.run()
        print(watch.samples / (watch.ended - watch.started), flush=True)
    return 0


def folder_of_turn(folder: Path, turn: int) -> Path:
    made = folder / f"model-{os.getpid()}-{turn}"
    made.mkdir()
    return made


if __name__ == "__main__":
    sys.exit(main())
