"""What a run tells its trackers: from a thread of its own, and never at the cost of the run.

A tracker that cannot be reached, or fails, is left alone from then on, with a word on it. Which run of a
tracker belongs to the model_dir is kept in trackers.json, so that a resumed run goes on in the same one.
"""

from __future__ import annotations

import json
import logging
import math
import queue
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from recgrad.config import PipelineConfig
from recgrad.config.flat import flat
from recgrad.config.load import CONFIG_FILE
from recgrad.errors import RecgradError
from recgrad.training.checkpoint.staging import write_file_atomically
from recgrad.training.hook import StepReport
from recgrad.training.hooks.events import EVALUATIONS_FILE
from recgrad.training.hooks.log import LogRecord
from recgrad.training.hooks.trackers import TRACKERS
from recgrad.training.hooks.trackers.base import Tracker
from recgrad.training.trainer import Trainer

_log = logging.getLogger("recgrad.training")

RUNS_FILE = "trackers.json"
REPORT_FILE = "report.html"
MOST_WAITING = 10_000
"""Messages that wait for a slow tracker; more are dropped."""
CLOSE_SECS = 60.0
_MOST_PARAMS = 400
_UNNAMED = re.compile(r"[^\w\-. :/]")
_LEFT_OUT = ("feature_configs", "feature_groups", "input_fields", "input_path", "model_dir")


def open_trackers(config: PipelineConfig, model_dir: Path) -> list[Tracking]:
    """What tells the trackers that the config names.

    Raises:
        RecgradError: a tracker's package is not installed.
    """
    return [Tracking(spec, model_dir, params_of(config)) for spec in config.train_config.trackers]


def make_tracker(spec: str, model_dir: Path) -> Tracker:
    """The tracker of `name` or `name:where`."""
    name, _, where = spec.partition(":")
    kind = TRACKERS[name]
    try:
        kind.check_installed()
    except ImportError as error:
        raise RecgradError(
            f"train_config.trackers: '{name}' needs a package ({error}); install it with "
            f"pip install 'recgrad[{kind.extra}]'"
        ) from error
    return kind(where, model_dir)


def params_of(config: PipelineConfig) -> dict[str, str]:
    """What is set in a config, but for features, groups and paths, which are in the file itself."""
    found = {}
    for path, value in flat(config).items():
        if not any(part in path for part in _LEFT_OUT):
            found[_UNNAMED.sub("_", path)] = str(value)
    return dict(list(found.items())[:_MOST_PARAMS])


class Tracking:
    """A sink of the log that hands everything on to one tracker, from a thread of its own.

    Args:
        spec: of the tracker, as the config has it.
        model_dir: of the run.
        params: of the run.
        close_secs: how long the end of a run waits for a tracker.
    """

    def __init__(
        self, spec: str, model_dir: Path, params: Mapping[str, str], *, close_secs: float = CLOSE_SECS
    ) -> None:
        self.spec, self.model_dir, self.params = spec, model_dir, params
        self._close_secs = close_secs
        self._tracker = make_tracker(spec, model_dir)
        self._waiting: queue.Queue[Callable[[], None] | None] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._failed = False
        self._dropped = False
        self._finished = False

    def start(self, trainer: Trainer) -> None:
        self._thread = threading.Thread(target=self._work, name=f"track {self.spec}", daemon=True)
        self._thread.start()
        self._put(self._open)

    def step(self, trainer: Trainer, report: StepReport) -> None:
        """Steps are not told one by one."""

    def record(self, trainer: Trainer, record: LogRecord) -> None:
        values = {f"train/{name}": value for name, value in record.losses.items()}
        values |= {f"train/{name}": value for name, value in record.metrics.items()}
        values |= {f"lr/{name}": value for name, value in record.rates.items()}
        values |= {"samples_per_sec": record.samples_per_sec, "epoch": float(record.epoch)}
        self._numbers(values, record.step)

    def evaluating(self, trainer: Trainer, done: int, total: int | None) -> None:
        """Only what came of it is told."""

    def evaluation(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self._numbers({f"eval/{name}": value for name, value in metrics.items()}, trainer.state.step)

    def end(self, trainer: Trainer) -> None:
        self._finished = trainer.stop.signal is None
        self._put(lambda: self._attach(EVALUATIONS_FILE, REPORT_FILE))

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._put(lambda: self._tracker.close(finished=self._finished))
        self._put(None)
        thread.join(self._close_secs)
        if thread.is_alive():
            self._give_up(f"it did not answer for {self._close_secs:g} s")

    def _numbers(self, values: Mapping[str, float], step: int) -> None:
        finite = {_UNNAMED.sub("_", n): float(v) for n, v in values.items() if math.isfinite(v)}
        self._put(lambda: self._tracker.log(finite, step))

    def _put(self, call: Callable[[], None] | None) -> None:
        try:
            self._waiting.put_nowait(call)
        except queue.Full:
            if not self._dropped and not self._failed:
                self._dropped = True
                _log.warning("tracker '%s' is too slow; some of what it should be told is lost", self.spec)

    def _work(self) -> None:
        while (call := self._waiting.get()) is not None:
            if self._failed:
                continue
            try:
                call()
            except BaseException as error:
                self._give_up(f"{type(error).__name__}: {str(error).strip().splitlines()[:1] or ['']}")

    def _give_up(self, reason: str) -> None:
        if not self._failed:
            self._failed = True
            _log.warning("tracker '%s' fails, and is told nothing more (%s)", self.spec, reason)

    def _open(self) -> None:
        known = read_runs(self.model_dir)
        run_id = self._tracker.open(known.get(self.spec, ""), self.params)
        write_file_atomically(
            self.model_dir / RUNS_FILE, json.dumps({**read_runs(self.model_dir), self.spec: run_id}).encode()
        )
        self._attach(CONFIG_FILE)

    def _attach(self, *names: str) -> None:
        for name in names:
            if (self.model_dir / name).is_file():
                self._tracker.attach(self.model_dir / name)


def read_runs(model_dir: Path) -> dict[str, str]:
    """The runs of trackers that belong to a model_dir, by what the config calls the tracker."""
    try:
        found = json.loads((model_dir / RUNS_FILE).read_text())
        return {str(spec): str(run) for spec, run in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}


def attach_file(model_dir: Path, path: Path) -> Sequence[str]:
    """Hand a file to the trackers that a run was told to; returns those that took it."""
    took = []
    for spec, run_id in read_runs(model_dir).items():
        try:
            tracker = make_tracker(spec, model_dir)
            tracker.open(run_id, {})
            tracker.attach(path)
            tracker.close(finished=True)
            took.append(spec)
        except Exception as error:
            _log.warning("tracker '%s' did not take %s (%s)", spec, path, error)
    return took
