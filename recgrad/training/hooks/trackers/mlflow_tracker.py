"""MLflow: a run in an experiment of a tracking server, a database or a folder."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

from recgrad.training.hooks.trackers import TRACKERS
from recgrad.training.hooks.trackers.base import Tracker

_PARAMS_AT_ONCE = 100
_LONGEST = 500


@TRACKERS.register("mlflow")
class MlflowTracker(Tracker):
    """`mlflow`, `mlflow:URI` or `mlflow:URI#EXPERIMENT`; without a URI what MLFLOW_TRACKING_URI says."""

    extra: ClassVar[str] = "mlflow"

    def __init__(self, where: str, model_dir: Path) -> None:
        super().__init__(where, model_dir)
        uri, _, experiment = where.partition("#")
        self.uri, self.experiment = uri or None, experiment or "recgrad"
        self._client: Any = None
        self._run = ""

    @classmethod
    def check_installed(cls) -> None:
        if find_spec("mlflow") is None:
            raise ImportError("mlflow")

    def open(self, run_id: str, params: Mapping[str, str]) -> str:
        from mlflow.entities import Param
        from mlflow.tracking import MlflowClient

        logging.getLogger("mlflow").setLevel(logging.WARNING)
        self._client = MlflowClient(tracking_uri=self.uri)
        if run_id:
            self._run = run_id
            self._client.update_run(run_id, status="RUNNING")
            return run_id
        known = self._client.get_experiment_by_name(self.experiment)
        experiment = self._client.create_experiment(self.experiment) if known is None else known.experiment_id
        run = self._client.create_run(experiment, run_name=self.model_dir.name)
        self._run = str(run.info.run_id)
        given = [Param(name, value[:_LONGEST]) for name, value in params.items()]
        for start in range(0, len(given), _PARAMS_AT_ONCE):
            self._client.log_batch(self._run, params=given[start : start + _PARAMS_AT_ONCE])
        self._client.set_tag(self._run, "model_dir", str(self.model_dir.absolute()))
        return self._run

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        self._client.log_batch(self._run, metrics=[Metric(n, v, now, step) for n, v in metrics.items()])

    def attach(self, path: Path) -> None:
        self._client.log_artifact(self._run, str(path))

    def close(self, *, finished: bool) -> None:
        self._client.set_terminated(self._run, "FINISHED" if finished else "KILLED")
