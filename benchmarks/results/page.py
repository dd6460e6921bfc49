"""Runs the benchmarks and writes docs/benchmarks.md: one page of one run, with its machine and date.

    python benchmarks/results/page.py [--only dense embedding …] [--limit 900] [--out docs/benchmarks.md]

Every program of benchmarks/ is run with its defaults, one after the other, in the order of --only. One that
fails, or takes longer than the limit, is named on the page with its last words. The page is written after
each of them, so that a run that is broken off leaves what it has measured.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent.parent
VECTORS = (("avx512f", "AVX-512"), ("avx2", "AVX2"), ("asimd", "NEON"))
HEAD = """# Benchmarks

Written by `make bench`, which runs every program of `benchmarks/` and puts their bars here: {when},
{machine}; Python {python}, torch {torch}, numba {numba}. The load of the machine (running processes,
averaged over a minute) was {load:.1f} before.

A bar is a ratio to a named peer of the same run, in turn with it, after both were shown to compute the
same. Each program's first lines say what it compares; run it alone for its whole table, such as
`python benchmarks/dense.py`.
"""


@dataclass
class Run:
    """What a program gave: its bars, or why there are none."""

    name: str
    title: str
    bars: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0
    failure: str = ""


def run_program(path: Path, limit: float) -> Run:
    """Run one program."""
    title = (ast.get_docstring(ast.parse(path.read_text())) or path.stem).splitlines()[0]
    run = Run(path.stem, title)
    started = datetime.now(timezone.utc)
    with tempfile.TemporaryDirectory() as folder:
        bars = Path(folder) / "bars.json"
        command = [sys.executable, str(path), "--json", str(bars)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
            if done.returncode:
                said = (done.stderr.strip() or done.stdout.strip()).splitlines()
                run.failure = said[-1] if said else f"exit code {done.returncode}"
        except subprocess.TimeoutExpired:
            run.failure = f"took longer than {limit:g} s"
        if bars.exists():
            run.bars = json.loads(bars.read_text())
    run.seconds = (datetime.now(timezone.utc) - started).total_seconds()
    return run


def describe_machine() -> str:
    """Cores, processor and vector extension."""
    model, flags = platform.processor() or platform.machine(), set[str]()
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                model = value.strip()
            elif name.strip() in ("flags", "Features"):
                flags = set(value.split())
    vectors = next((name for flag, name in VECTORS if flag in flags), "no vectors known")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores of {model} ({vectors})"


def is_measured(bar: dict[str, Any]) -> bool:
    """Whether a program was asked for a bar: it writes a ratio of 0 for one that it was not."""
    return bool(bar["ratio"] > 0 or bar["holds"])


def sign_of(bar: dict[str, Any]) -> str:
    """Which side of its goal a ratio is to lie on; at the goal itself a goal of 0 is taken for a limit."""
    if bar["ratio"] == bar["goal"]:
        above = bar["goal"] > 0
    else:
        above = (bar["ratio"] > bar["goal"]) == bar["holds"]
    return "≥" if above else "≤"


def page(runs: list[Run], left_out: list[str], load: float, when: datetime) -> str:
    """The page as Markdown."""
    head = HEAD.format(
        when=f"{when:%Y-%m-%d %H:%M} UTC",
        machine=describe_machine(),
        python=platform.python_version(),
        torch=version("torch"),
        numba=version("numba"),
        load=load,
    )
    parts = [head]
    bars = [bar for run in runs for bar in run.bars if is_measured(bar)]
    held = sum(bar["holds"] for bar in bars)
    parts.append(f"{held} of {len(bars)} bars hold.\n")
    for run in runs:
        parts.append(f"## benchmarks/{run.name}.py\n\n{run.title}\n")
        if run.failure:
            parts.append(f"It did not end well: `{run.failure[:200]}`\n")
        if run.bars:
            lines = ["| bar | ratio | goal | |", "| --- | --- | --- | --- |"]
            for bar in run.bars:
                mark = "holds" if bar["holds"] else "**missed**" if is_measured(bar) else "not measured"
                goal = f"{sign_of(bar)} {bar['goal']:g}"
                lines.append(f"| {bar['name']} | {bar['ratio']:.3g} | {goal} | {mark} |")
            parts.append("\n".join(lines) + "\n")
    if left_out:
        parts.append(f"## Not in this run\n\n{', '.join(f'`{name}.py`' for name in left_out)}\n")
    return "\n".join(parts)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    programs = {path.stem: path for path in sorted(BENCHMARKS.glob("*.py"))}
    parser.add_argument("--only", nargs="+", choices=list(programs), default=list(programs))
    parser.add_argument("--limit", type=float, default=900, help="seconds for each program")
    parser.add_argument("--out", type=Path, default=BENCHMARKS.parent / "docs" / "benchmarks.md")
    args = parser.parse_args()
    when, load = datetime.now(timezone.utc), os.getloadavg()[0]
    runs = []
    for name in args.only:
        print(f"{name} …", flush=True)
        run = run_program(programs[name], args.limit)
        print(f"  {run.seconds:.0f} s, {len(run.bars)} bars {run.failure}", flush=True)
        runs.append(run)
        done = {run.name for run in runs}
        args.out.write_text(page(runs, [name for name in programs if name not in done], load, when))
    return int(any(run.failure for run in runs))


if __name__ == "__main__":
    sys.exit(main())
