"""Runs of two ranks that are stopped or lose a rank end cleanly, and go on as if nothing had been."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from recgrad.config import save_config

pytestmark = pytest.mark.slow

# Shuffled, with dropout, and with a checkpoint every few steps.
TEXT = """
train_config {
  num_epochs: 2 save_checkpoints_steps: 10 keep_checkpoint_max: 2 log_step_count_steps: 5
  process_timeout_secs: 20
}
data_config { shuffle: true }
"""
MODEL = """
feature_groups { group_name: "wide" group_type: WIDE feature_names: ["user", "item", "words"] }
feature_groups { group_name: "fm" group_type: DEEP feature_names: ["user", "item", "last"] }
feature_groups { group_name: "deep" group_type: DEEP feature_names: ["user", "tags", "words", "price"] }
deepfm {
  deep { hidden_units: [8, 4] dropout_ratio: 0.2 } final { hidden_units: [4] } wide_embedding_dim: 4
}
losses { binary_cross_entropy {} } metrics { auc {} } train_metrics { auc {} }
"""
STEPS = 100
KILLS_BY_RESTART, KILLS_BY_HAND = 17, 3
Command = Callable[..., Any]


def checksums(folder: Path) -> str:
    """What the last checkpoint consists of, with the checksum of every file."""
    text = (folder / f"model.ckpt-{STEPS}" / "manifest.json").read_text()
    assert "crc32" in text
    return text


class Whole(NamedTuple):
    """A run that nothing interrupts: its config, what it ends with, and the kinds of lines that it says."""

    config: Path
    end: str
    lines: frozenset[str]


def kind_of(line: str) -> str:
    """A line without its numbers."""
    return re.sub(r"[\d.,]+", "0", line)


@pytest.fixture(scope="module")
def whole(runs: Any, command: Command) -> Whole:
    config = runs.config(TEXT, MODEL, ranks=2)
    config.train_config.ClearField("save_checkpoints_epochs")
    path = runs.folder / "interrupted.config"
    save_config(config, path)
    folder = runs.new_dir()
    run = command("train", str(path), "--model_dir", str(folder), "--nproc", "2")
    assert run.wait() == 0, run.said
    lines = [*run.said.splitlines(), "continuing after step 10"]
    return Whole(path, checksums(folder), frozenset(map(kind_of, lines)))


def steps_of(folder: Path) -> int:
    """The last step that was logged."""
    events = folder / "events.jsonl"
    lines = events.read_text().splitlines() if events.exists() else []
    return max((json.loads(line).get("step", 0) for line in lines if line.endswith("}")), default=0)


def wait_for_steps(folder: Path, run: Any, more: int) -> None:
    begun = steps_of(folder)
    deadline = time.monotonic() + 90
    while steps_of(folder) < begun + more:
        assert run.process.poll() is None, run.wait() or run.said
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_signal_stops_all_ranks_and_leaves_no_trace(runs: Any, command: Command, whole: Whole) -> None:
    config, expected, _ = whole
    folder = runs.new_dir()
    line = ["train", str(config), "--model_dir", str(folder), "--nproc", "2"]
    for number, code in ((signal.SIGTERM, 143), (signal.SIGINT, 130)):
        run = command(*line)
        wait_for_steps(folder, run, 25)
        run.process.send_signal(number)
        assert run.wait(60) == code, run.said
        hint = rf"stopped (after|in the evaluation of) step (\d+); resume with: recgrad train {folder}/\S+ "
        found = re.search(hint + "--continue_train --nproc 2", run.said)
        assert found is not None, run.said
        assert (folder / f"model.ckpt-{found[2]}").exists()
        assert "Traceback" not in run.said
        line = [*line[:6], "--continue_train"]
    run = command(*line)
    assert run.wait() == 0, run.said
    assert checksums(folder) == expected


def ranks_of(launcher: int) -> dict[int, int]:
    """Process ids of the ranks that a launcher has started, as far as they run."""
    found = {}
    try:
        children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
        for pid in map(int, children):
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            for variable in variables:
                if variable.startswith(b"RANK="):
                    found[int(variable[5:])] = pid
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def new_ranks(process: subprocess.Popen[bytes], before: set[int]) -> dict[int, int]:
    """Both ranks of the next start; none if the run has ended."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        found = ranks_of(process.pid)
        if len(found) == 2 and not before & set(found.values()):
            return found
        time.sleep(0.01)
    assert process.poll() is not None, "no further start"
    return {}


def moments(rng: random.Random, folder: Path) -> Iterator[Callable[[], bool]]:
    """When to kill: after some time from the start, after some steps, while a checkpoint is written."""
    while True:
        begun, at = time.monotonic(), rng.uniform(0, 6)
        yield lambda begun=begun, at=at: time.monotonic() - begun > at
        first, more = steps_of(folder), rng.randrange(1, 15)
        yield lambda first=first, more=more: steps_of(folder) >= first + more
        yield lambda: any(".writing-" in path.name for path in folder.glob("*"))


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_a_killed_rank_ends_the_run_and_costs_nothing_else(runs: Any, command: Command, whole: Whole) -> None:
    config, expected, usual = whole
    rng = random.Random(8)
    folder = runs.new_dir()
    line = ["train", str(config), "--model_dir", str(folder), "--nproc", "2", "--continue_train"]
    kills = 0
    while kills < KILLS_BY_RESTART + KILLS_BY_HAND:
        by_restart = KILLS_BY_RESTART - kills
        more = ["--max-restarts", str(by_restart)] if by_restart > 0 else []
        run = command(*line, *more)
        victims = []
        seen: set[int] = set()
        moment = moments(rng, folder)
        for _ in range(max(by_restart, 1)):
            ranks = new_ranks(run.process, seen)
            if not ranks:
                break
            seen |= set(ranks.values())
            due, rank = next(moment), rng.randrange(2)
            while (
                not due()
                and run.process.poll() is None
                and ranks_of(run.process.pid).get(rank) == ranks[rank]
            ):
                time.sleep(0.002)
            if run.process.poll() is None:
                kill(ranks[rank])
                victims.append(rank)
        code = run.wait()
        err = run.said
        # Each time the cause is the first line, and the only one, that a run in good order does not say.
        # How long a kernel took to compile is said where the machine is busy, and gloo itself writes that it
        # does not reach a rank that died while they met.
        lines = [
            line for line in err.splitlines() if not re.match(r"compiled the |\[.*gloo.* connect", line, re.I)
        ]
        errors = [line for line in lines if kind_of(line) not in usual]
        causes = [
            re.match(r"rank (\d) was killed by SIGKILL .*; (starting again|resume with)", e) for e in errors
        ]
        odd = [line for line, cause in zip(errors, causes, strict=True) if cause is None]
        assert not odd, odd
        said = [cause[1] for cause in causes if cause is not None]
        ended_well = code == 0
        assert code in (0, 1), err
        # A rank that is killed when its work is done is not missed.
        assert [int(rank) for rank in said] in (victims, victims[:-1] if ended_well else victims), err
        kills += len(said)
        if ended_well:
            assert checksums(folder) == expected
            folder = runs.new_dir()
            line[3] = str(folder)
        else:
            assert "--continue-train" in err.splitlines()[-1], err
    run = command(*line)
    assert run.wait() == 0, run.said
    assert checksums(folder) == expected
