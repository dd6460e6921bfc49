"""The event log: one JSON object a line in model_dir/events.jsonl, and train_eval_result.txt.

A resumed run drops the lines after its checkpoint's step first, so that both files read as
if the run had never been interrupted. An evaluation that is still due was not made, whatever
they say: its run may have been killed before it was saved.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

from recgrad.training.checkpoint.staging import write_file_atomically
from recgrad.training.hook import StepReport
from recgrad.training.hooks.facts import describe_machine, describe_run
from recgrad.training.hooks.log import LogRecord, writing_to
from recgrad.training.trainer import Trainer

EVENTS_FILE = "events.jsonl"
EVALUATIONS_FILE = "train_eval_result.txt"


class EventLog:
    """Writes the records and evaluations of a run as JSON lines."""

    def __init__(self, model_dir: Path) -> None:
        self.model_dir = model_dir
        self._events: IO[str] | None = None
        self._evaluations: IO[str] | None = None

    def start(self, trainer: Trainer) -> None:
        step = trainer.state.step
        evaluated = step - 1 if trainer.state.evaluation_due else step
        self._events = _open_after(
            self.model_dir / EVENTS_FILE,
            lambda event: event.get("step", 0) <= (evaluated if event.get("kind") == "eval" else step),
        )
        self._evaluations = _open_after(
            self.model_dir / EVALUATIONS_FILE, lambda line: line.get("global_step", 0) <= evaluated
        )
        machine, run = describe_machine(trainer.processes), describe_run(trainer)
        start = {"kind": "start", "step": step, "time": time.time()}
        self._write(start | {"machine": dict(machine), "run": dict(run)})

    def step(self, trainer: Trainer, report: StepReport) -> None:
        """Steps are not logged one by one."""

    def record(self, trainer: Trainer, record: LogRecord) -> None:
        self._write({"kind": "train", "time": time.time(), **asdict(record)})

    def evaluating(self, trainer: Trainer, done: int, total: int | None) -> None:
        """Only what came of it is kept."""

    def evaluation(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        step = trainer.state.step
        best = {key: value for key, value in trainer.state.best_evaluation.items() if key != "metrics"}
        event = {"kind": "eval", "step": step, "time": time.time(), "metrics": dict(metrics)}
        self._write(event | ({"best": best} if best else {}))
        assert self._evaluations is not None
        line = {"global_step": step, **{name: metrics[name] for name in sorted(metrics)}}
        _write_line(self._evaluations, line)

    def end(self, trainer: Trainer) -> None:
        state = trainer.state
        self._write({"kind": "end", "step": state.step, "time": time.time(), "stopped": state.stopped})

    def close(self) -> None:
        for file in (self._events, self._evaluations):
            if file is not None:
                with writing_to(file.name):
                    file.close()

    def _write(self, event: dict[str, Any]) -> None:
        assert self._events is not None
        _write_line(self._events, event)


def as_json(value: Any) -> str:
    """A line of JSON; what is undefined (nan, infinite) is null."""
    return json.dumps(_without_nan(value), allow_nan=False) + "\n"


def _write_line(file: IO[str], value: Any) -> None:
    with writing_to(file.name):
        file.write(as_json(value))
        file.flush()


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _open_after(path: Path, keeps: Callable[[dict[str, Any]], bool]) -> IO[str]:
    """Open a JSON-lines file for appending, without the lines that are not kept and torn ones."""
    kept = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                value = json.loads(line)
            except json.JSONDecodeError:
                continue  # the last line of a killed run
            if keeps(value):
                kept.append(line)
    write_file_atomically(path, "".join(line + "\n" for line in kept).encode())
    return path.open("a")
