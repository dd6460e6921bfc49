"""What commands cost that need no torch: CPU seconds from the line to the answer.

    python benchmarks/start.py [--json FILE] [--rounds N]

`recgrad list` and a config that cannot be read are answered before torch is imported, in half a second. The
peer is `import torch` alone, in the same run; a sound config is built, which needs it. Medians of rounds, one
process each.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import median

from results.bars import Bar, describe_bar, write_bars

from recgrad.synth import write_synth

HALF_A_SECOND = 0.5


def cpu_seconds(arguments: list[str], code: int) -> float:
    """What a process takes of the CPU, in user mode and in the kernel."""
    child = os.posix_spawn(
        sys.executable,
        [sys.executable, *arguments],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_WRONLY, 0) for fd in (1, 2)],
    )
    _, status, used = os.wait4(child, 0)
    if os.waitstatus_to_exitcode(status) != code:
        raise SystemExit(f"{' '.join(arguments)}: exit code {os.waitstatus_to_exitcode(status)}, not {code}")
    return used.ru_utime + used.ru_stime


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_synth(folder, 1_000, eval_rows=100)
        sound, broken = Path(folder) / "deepfm.config", Path(folder) / "broken.config"
        broken.write_text(sound.read_text().replace("dense_optimizer", "dense_optimiser"))
        recgrad = ["-m", "recgrad"]
        cases = {
            "recgrad list": ([*recgrad, "list"], 0),
            "recgrad list models": ([*recgrad, "list", "models"], 0),
            "recgrad list optimizers": ([*recgrad, "list", "optimizers"], 0),
            "recgrad check, a field that does not exist": ([*recgrad, "check", str(broken)], 2),
            "recgrad check, a sound config": ([*recgrad, "check", str(sound)], 0),
            "import torch": (["-c", "import torch"], 0),
        }
        seconds: dict[str, list[float]] = {name: [] for name in cases}
        for turn in range(args.rounds + 1):
            for name, (arguments, code) in cases.items():
                spent = cpu_seconds(arguments, code)
                if turn:  # the first round finds files that are in no cache
                    seconds[name].append(spent)
    spent_on = {name: median(found) for name, found in seconds.items()}
    for name, value in spent_on.items():
        print(f"{name:46} {value:6.2f} CPU s")
    *_, check, torch = spent_on
    bars = [
        Bar(f"{name}: CPU seconds", value, HALF_A_SECOND, at_least=False)
        for name, value in spent_on.items()
        if name not in (check, torch)
    ]
    bars.append(Bar(f"{check}: over importing torch", spent_on[check] / spent_on[torch], 2.0, at_least=False))
    print("\n" + "\n".join(map(describe_bar, bars)))
    write_bars(args.json, bars)
    return 0


if __name__ == "__main__":
    sys.exit(main())
