"""`recgrad tune`: what it costs beside its trials, and whether it finds better settings than examples have.

    python benchmarks/tune.py                                     30 trials, 400,000 rows of `recgrad synth`
    python benchmarks/tune.py --kuairand ../shared/data/kuairand  also examples/kuairand_deepfm.config

Overhead is jobs × the time of the command over the sum of the trials' own times, as the study has them, less
1: starting, idling at the end and the report. The search sees one half of the rows that do not train, by
their hash, or of KuaiRand a tenth of its training rows; the other rows are the test, which it has not seen.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from recgrad.config import load_config, save_config
from recgrad.experiments.tune import TuneSettings, open_study
from recgrad.synth import write_synth
from recgrad.training.run import evaluate

ROOT = Path(__file__).resolve().parents[1]
JOBS = 2


def recgrad(*arguments: object) -> float:
    """The seconds that a command takes."""
    start = time.perf_counter()
    line = [sys.executable, "-m", "recgrad", *map(str, arguments)]
    subprocess.run(line, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return time.perf_counter() - start


def synthetic(folder: Path, rows: int) -> tuple[Any, str]:
    """The config of `recgrad synth` with half of its evaluation rows, and where the other half is."""
    write_synth(folder, rows, seed=0)
    config = load_config(folder / "deepfm.config")
    held = config.eval_input_path
    config.eval_input_path = f"{held} where hash(row()) % 2 = 0"
    return config, f"{held} where hash(row()) % 2 = 1"


def kuairand(folder: Path, rows: int) -> tuple[Any, str]:
    """The example, with every n-th row so that about `rows` train; a tenth of them evaluates instead."""
    config = load_config(ROOT / "examples/kuairand_deepfm.config")
    one_of = max(1, 1_100_000 // rows)
    part = f"hash(row()) % {one_of} = 0"
    train = f"{folder / 'train.parquet'} where {part}"
    config.train_input_path = f"{train} and hash(row()) % {10 * one_of} >= {one_of}"
    config.eval_input_path = f"{train} and hash(row()) % {10 * one_of} < {one_of}"
    return config, str(folder / "test.parquet")


def measure(name: str, config: Any, test: str, out: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Train the config as it is, search, and compare on validation and on the test."""
    config.train_config.ClearField("save_checkpoints_epochs")
    config.train_config.save_checkpoints_steps = 50
    config.model_dir = str(out / "plain")
    path = out / "plain.config"
    save_config(config, path)
    recgrad("train", path, "--num-threads", 1)
    plain = evaluate(str(out / "plain"))["auc"]
    threads = ("--num-threads", 1)
    wall = recgrad(
        "tune", path, "--trials", args.trials, "--jobs", JOBS, "--metric", "auc", "--out", out / "t", *threads
    )
    study = open_study(TuneSettings(config, [], out / "t", args.trials, "auc", True))
    own = sum(trial.duration.total_seconds() for trial in study.trials if trial.duration)
    best = out / "t" / study.best_trial.user_attrs["folder"]
    found = evaluate(str(best))["auc"]
    on_test = [evaluate(str(one), eval_input_path=test)["auc"] for one in (out / "plain", best)]
    overhead = JOBS * wall / own - 1
    pruned = sum(trial.state.name == "PRUNED" for trial in study.trials)
    print(f"{name}: {len(study.trials)} trials ({pruned} stopped early), {wall:.0f} s with {JOBS} jobs")
    print(f"  {own:.0f} s in trials: overhead {overhead:.1%} (goal: below 10 %)")
    print(f"  validation AUC {plain:.5f} → {found:.5f}; test {on_test[0]:.5f} → {on_test[1]:.5f}", flush=True)
    return [
        {"name": f"overhead, {name}", "ratio": overhead, "goal": 0.1, "holds": overhead < 0.1},
        {
            "name": f"validation AUC gained, {name}",
            "ratio": found - plain,
            "goal": 0.0,
            "holds": found > plain,
        },
    ]


def main() -> None:
    """Measure, print a table, and say which bars hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--kuairand", metavar="FOLDER", type=Path)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "synth").mkdir()
        results += measure("synth", *synthetic(place / "synth", args.rows), place / "synth", args)
        if args.kuairand is not None:
            (place / "kuairand").mkdir()
            own = kuairand(args.kuairand.resolve(), args.rows)
            results += measure("KuaiRand", *own, place / "kuairand", args)
    if args.json:
        Path(args.json).write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
