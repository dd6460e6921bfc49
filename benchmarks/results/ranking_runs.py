"""Runs of benchmarks/ranking.py: what each reached, kept in a file, and which are still to be made."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Run:
    """What one training reaches."""

    data: str
    rows: int
    model: str
    setting: str
    seed: int
    valid_auc: float
    auc: float
    grouped: float | None
    log_loss: float
    seconds: float
    parameters: int


class Runs:
    """Finished runs, kept in a file of JSON lines where one is given."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        lines = path.read_text().splitlines() if path is not None and path.exists() else []
        self.found = [Run(**json.loads(line)) for line in lines]

    def add(self, run: Run) -> None:
        self.found.append(run)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(asdict(run)) + "\n")

    def of(self, data: str, rows: int, model: str) -> list[Run]:
        wanted = (data, rows, model)
        return [run for run in self.found if (run.data, run.rows, run.model) == wanted]

    def chosen(self, data: str, rows: int, model: str, settings: Sequence[str]) -> str | None:
        """The setting that is best on validation rows with seed 0; None as long as one was not tried."""
        tried = {run.setting: run.valid_auc for run in self.of(data, rows, model) if run.seed == 0}
        known = {setting: tried[setting] for setting in settings if setting in tried}
        return max(known, key=known.__getitem__) if len(known) == len(settings) else None

    def final(self, data: str, rows: int, model: str, settings: Sequence[str]) -> list[Run]:
        """Of the chosen setting, one for each seed."""
        setting = self.chosen(data, rows, model, settings)
        return [run for run in self.of(data, rows, model) if run.setting == setting]

    def missing(self, data: str, rows: int, model: str, settings: Sequence[str], seed: int) -> list[str]:
        """The settings that are to be trained with a seed and were not."""
        chosen = self.chosen(data, rows, model, settings)
        wanted = list(settings) if seed == 0 else [chosen] if chosen else []
        done = {run.setting for run in self.of(data, rows, model) if run.seed == seed}
        return [setting for setting in wanted if setting not in done]
