"""Weights & Biases: a run in a project; offline where WANDB_MODE says so."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from recgrad.training.hooks.trackers import TRACKERS
from recgrad.training.hooks.trackers.base import Tracker


@TRACKERS.register("wandb")
class WandbTracker(Tracker):
    """`wandb`, `wandb:PROJECT` or `wandb:ENTITY/PROJECT`; its files are in the model_dir, under wandb/."""

    extra: ClassVar[str] = "wandb"

    def __init__(self, where: str, model_dir: Path) -> None:
        super().__init__(where, model_dir)
        entity, _, project = where.rpartition("/")
        self.entity, self.project = entity or None, project or "recgrad"
        self._run: Any = None

    @classmethod
    def check_installed(cls) -> None:
        if find_spec("wandb") is None:
            raise ImportError("wandb")

    def open(self, run_id: str, params: Mapping[str, str]) -> str:
        os.environ.setdefault("WANDB_SILENT", "true")  # what a run says is said once, by the console
        import wandb

        self._run = wandb.init(
            project=self.project,
            entity=self.entity,
            id=run_id or None,
            resume="allow" if run_id else None,
            name=self.model_dir.name,
            dir=str(self.model_dir),
            config=dict(params),
        )
        return str(self._run.id)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def attach(self, path: Path) -> None:
        self._run.save(str(path), base_path=str(path.parent), policy="now")

    def close(self, *, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)
