"""The runs below a folder: their configs, metrics and times, read from what every run leaves behind."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recgrad.config import PipelineConfig, load_config
from recgrad.config.flat import flat
from recgrad.config.load import CONFIG_FILE
from recgrad.errors import RecgradError, whole_path
from recgrad.training.hooks.events import EVENTS_FILE

NOT_COMPARED = ("model_dir",)


@dataclass(frozen=True)
class Run:
    """A run, as its model_dir tells of it.

    Attributes:
        folder: its model_dir.
        config: as it ran.
        metrics: of the last evaluation.
        best: of the best evaluation, if the run says which that is, else of the last.
        steps: updates made.
        seconds: of all parts of the run together.
        rows: of the training data; None where the run has not said it.
        begun: seconds since 1970; 0.0 if unknown.
        state: ended, ended early (with the reason), or under way, which a killed run seems to be, too.
    """

    folder: Path
    config: PipelineConfig
    metrics: Mapping[str, float]
    best: Mapping[str, float]
    steps: int
    seconds: float
    rows: int | None
    begun: float
    state: str


def find_runs(folder: str | Path) -> list[Run]:
    """All runs in a folder and below it, in the order of their paths.

    Raises:
        RecgradError: there is no such folder, or no run in it.
    """
    root = Path(folder)
    if not root.is_dir():
        raise RecgradError(f"{root}{whole_path(root)}: there is no such folder; name one with runs in it")
    found = [read_run(path) for path in _model_dirs(root)]
    if not found:
        raise RecgradError(
            f"{root}{whole_path(root)}: no run is here or below ({CONFIG_FILE} with {EVENTS_FILE})"
        )
    return found


def _model_dirs(root: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(root):
        folders.sort()
        if CONFIG_FILE in files and EVENTS_FILE in files:
            folders[:] = [name for name in folders if not name.startswith("model.ckpt-")]
            yield Path(place)


def read_run(folder: Path) -> Run:
    """The run of one model_dir."""
    events = _events(folder / EVENTS_FILE)
    evaluations = [event for event in events if event.get("kind") == "eval"]
    starts = [event for event in events if event.get("kind") == "start"]
    last = evaluations[-1]["metrics"] if evaluations else {}
    best_step = evaluations[-1].get("best", {}).get("step") if evaluations else None
    best = next((event["metrics"] for event in evaluations if event["step"] == best_step), last)
    facts = starts[-1].get("run", {}) if starts else {}
    return Run(
        folder,
        load_config(folder / CONFIG_FILE),
        last,
        best,
        max((int(event.get("step", 0)) for event in events), default=0),
        sum(_durations(events)),
        facts.get("train_rows"),
        float(starts[0]["time"]) if starts else 0.0,
        _state(events),
    )


def _state(events: Sequence[Mapping[str, Any]]) -> str:
    for event in reversed(events):
        if event.get("kind") == "end":
            return str(event.get("stopped") or "ended")
        if event.get("kind") == "start":
            break
    return "under way"


def _events(path: Path) -> list[dict[str, Any]]:
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:  # the torn last line of a run that was killed
            break
    return found


def _durations(events: Sequence[Mapping[str, Any]]) -> Iterator[float]:
    """Seconds of each part of the run."""
    begun: float | None = None
    last = 0.0
    for event in events:
        if event["kind"] == "start":
            if begun is not None:
                yield last - begun
            begun = event["time"]
        last = event["time"]
    if begun is not None:
        yield last - begun


def differing(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The fields that are not the same in all runs, each with its value in every run; None where unset."""
    every = [flat(run.config) for run in runs]
    names = dict.fromkeys(name for values in every for name in values)
    found = {}
    for name in names:
        values = [one.get(name) for one in every]
        if name not in NOT_COMPARED and any(value != values[0] for value in values):
            found[name] = values
    return found
