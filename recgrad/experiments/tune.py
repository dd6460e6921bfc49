"""Searching a space of configs with Optuna: trials are ordinary runs, stopped where they fall behind."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from recgrad.config import PipelineConfig, edit_config, save_config
from recgrad.config.messages import chosen
from recgrad.errors import ConfigError, RecgradError, nearest
from recgrad.experiments.space import Dimension, edits_of, own_settings
from recgrad.metrics import METRICS
from recgrad.training.hook import Hook
from recgrad.training.hooks.events import EVENTS_FILE
from recgrad.training.run import train
from recgrad.training.trainer import Trainer

JOURNAL = "study.journal"
BEST = "best.config"
STUDY = "recgrad"
_FOLDER, _OWNER = "folder", "owner"
_FIRST_LOOK = 2
"""The evaluation at which a trial may be stopped first: the very first tells fast rates from slow ones."""


@dataclass(frozen=True)
class TuneSettings:
    """What is asked of `recgrad tune`.

    Attributes:
        config: to begin from, expanded.
        space: what may change.
        out: the folder of trials and of the study.
        trials: how many to finish or prune, those of earlier calls included.
        metric: to go by, and whether the larger value is better.
        storage: a URL that Optuna knows; "" for a journal file in `out`.
        seed: of the search.
        device, custom_code: as for `train`.
    """

    config: PipelineConfig
    space: Sequence[Dimension]
    out: Path
    trials: int
    metric: str
    larger_is_better: bool
    storage: str = ""
    seed: int = 0
    device: str = "auto"
    custom_code: bool = True


def import_optuna() -> Any:
    """Optuna, quiet; an error that names the extra where it is not installed."""
    try:
        import optuna
    except ImportError as error:
        raise RecgradError(
            f"tune: needs Optuna ({error}); install it with pip install 'recgrad[tune]'"
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


def find_metric(config: PipelineConfig, wanted: str) -> tuple[str, bool]:
    """The metric to go by, the config's first unless one is named, and whether larger is better."""
    names = list(_metrics(config))
    if not names:
        raise RecgradError("tune: the config evaluates no metric; add one, such as metrics { auc {} }")
    if not config.eval_input_path:
        raise RecgradError("tune: eval_input_path is empty; trials are judged by evaluations")
    name = wanted or names[0][0]
    kind = next((kind for known, kind in names if known == name), None)
    if kind is None:
        known = [known for known, _ in names]
        raise RecgradError(f"tune: --metric {name}: the config has {', '.join(known)}{nearest(name, known)}")
    higher = METRICS[kind].higher_is_better
    if higher is None:
        raise RecgradError(f"tune: --metric {name} has no better end; name another")
    return name, higher


def _metrics(config: PipelineConfig) -> list[tuple[str, str]]:
    """Names of the metrics, as evaluations give them, with their kinds."""
    model = config.model_config
    found = [(pair[0], pair[0]) for metric in model.metrics if (pair := chosen(metric, "metric"))]
    inner = chosen(model, "model")
    for tower in getattr(inner[1], "task_towers", ()) if inner else ():
        for metric in tower.metrics:
            if pair := chosen(metric, "metric"):
                found.append((f"{pair[0]}_{tower.tower_name}", pair[0]))
    return found


def open_study(settings: TuneSettings) -> Any:
    """The study: a new one, or that of an earlier call, also of other processes and machines."""
    optuna = import_optuna()
    settings.out.mkdir(parents=True, exist_ok=True)
    return optuna.create_study(
        study_name=STUDY,
        storage=_storage(settings),
        load_if_exists=True,
        direction="maximize" if settings.larger_is_better else "minimize",
        sampler=_numbered_sampler(settings.seed),
        pruner=optuna.pruners.HyperbandPruner(min_resource=_FIRST_LOOK, reduction_factor=3),
    )


def _storage(settings: TuneSettings) -> Any:
    """Where the study is kept: a journal in the folder, or what Optuna opens at a URL."""
    from optuna import storages

    if not settings.storage:
        from optuna.storages.journal import JournalFileBackend

        return storages.JournalStorage(JournalFileBackend(str(settings.out / JOURNAL)))
    url = settings.storage
    if url.startswith("postgresql://") and find_spec("psycopg2") is None and find_spec("psycopg") is not None:
        url = url.replace("postgresql://", "postgresql+psycopg://", 1)
    try:
        return storages.get_storage(url)
    except Exception as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise RecgradError(
            f"tune: --storage {settings.storage} cannot be opened ({reason}); give a URL such as "
            "sqlite:///study.db, or postgresql://… with pip install 'recgrad[postgres]'"
        ) from error


def _numbered_sampler(seed: int) -> Any:
    """TPE whose random numbers depend on the seed and the trial's number alone.

    So processes try different settings, and a search with one job is the same whenever it is made.
    """
    optuna = import_optuna()

    class Numbered(optuna.samplers.BaseSampler):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            self._sampler = self._of(0)

        def _of(self, number: int) -> Any:
            own = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
            return optuna.samplers.TPESampler(seed=own, multivariate=True, constant_liar=True)

        def before_trial(self, study: Any, trial: Any) -> None:
            self._sampler = self._of(trial.number)
            self._sampler.before_trial(study, trial)

        def infer_relative_search_space(self, study: Any, trial: Any) -> Any:
            return self._sampler.infer_relative_search_space(study, trial)

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> Any:
            return self._sampler.sample_relative(study, trial, search_space)

        def sample_independent(self, *arguments: Any) -> Any:
            return self._sampler.sample_independent(*arguments)

        def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
            self._sampler.after_trial(study, trial, state, values)

    return Numbered()


def begin_with_own(study: Any, space: Sequence[Dimension]) -> None:
    """Queue the config as it is for the first trial of a new study, so that the best is no worse than it."""
    own = own_settings(space)
    if own and not study.get_trials(deepcopy=False):
        study.enqueue_trial(own, skip_if_exists=True)


def resume_killed(study: Any, *, alive: Callable[[str], bool] | None = None) -> int:
    """Queue the trials of processes of this machine that are gone, to be resumed; their number."""
    alive = alive or _alive
    optuna = import_optuna()
    resumed = 0
    for trial in study.get_trials(states=[optuna.trial.TrialState.RUNNING]):
        owner = trial.user_attrs.get(_OWNER, "")
        if not owner or alive(owner):
            continue
        study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        study.enqueue_trial(trial.params, user_attrs={_FOLDER: trial.user_attrs.get(_FOLDER, "")})
        resumed += 1
    return resumed


def _alive(owner: str) -> bool:
    """Whether the process that `host:pid` names may be at work; of other machines nothing is known."""
    host, _, number = owner.rpartition(":")
    if host != socket.gethostname():
        return True
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def run_trials(study: Any, settings: TuneSettings, say: Callable[[str], None]) -> None:
    """Make trials until the study has as many as were asked for, together with other processes."""
    optuna = import_optuna()
    states = optuna.trial.TrialState
    counted = (states.COMPLETE, states.PRUNED, states.RUNNING)  # what runs elsewhere counts as made
    while sum(t.state in counted for t in study.get_trials(deepcopy=False)) < settings.trials:
        trial = study.ask()
        folder = trial.user_attrs.get(_FOLDER) or f"trial-{trial.number:04d}"
        trial.set_user_attr(_FOLDER, folder)
        trial.set_user_attr(_OWNER, f"{socket.gethostname()}:{os.getpid()}")
        stopped = _one(study, trial, settings, settings.out / folder, say)
        if stopped:
            raise KeyboardInterrupt


def _one(study: Any, trial: Any, settings: TuneSettings, folder: Path, say: Callable[[str], None]) -> bool:
    """One trial; True if a signal has stopped it."""
    optuna = import_optuna()
    parameters = {dimension.path: dimension.suggest(trial) for dimension in settings.space}
    try:
        config = edit_config(settings.config, edits_of(parameters) | {"model_dir": str(folder)})
        hook = Prune(trial, settings.metric)
        with _without_hints():
            result = train(
                config,
                continue_train=(folder / EVENTS_FILE).exists(),
                device=settings.device,
                custom_code=settings.custom_code,
                hooks=[hook],
            )
    except ConfigError as error:  # settings that do not go together: the search learns to avoid them
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        say(f"trial {trial.number}: cannot run: {str(error).splitlines()[0]}")
        if sum(t.state == optuna.trial.TrialState.FAIL for t in study.get_trials(deepcopy=False)) > 20:
            raise RecgradError(f"tune: 20 trials could not run; see the last: {error}") from error
        return False
    if result.exit_code:
        return True
    metrics = result.best_metrics if settings.metric in result.best_metrics else result.metrics
    if settings.metric not in metrics:
        raise RecgradError(f"tune: evaluations give no '{settings.metric}' (they give {', '.join(metrics)})")
    value = metrics[settings.metric]
    state = optuna.trial.TrialState.PRUNED if hook.pruned else optuna.trial.TrialState.COMPLETE
    study.tell(trial, None if hook.pruned else value, state=state)
    say(f"trial {trial.number}: {settings.metric} {value:.6f}{'  (stopped early)' if hook.pruned else ''}")
    return False


@contextmanager
def _without_hints() -> Iterator[None]:
    """No hints on settings: a search leaves the usual ranges on purpose."""

    def speaks(record: logging.LogRecord) -> bool:
        return not str(record.msg).startswith("hint:")

    log = logging.getLogger("recgrad.training")
    log.addFilter(speaks)
    try:
        yield
    finally:
        log.removeFilter(speaks)


class Prune(Hook):
    """Reports evaluations to the study, and ends the run where it has fallen behind.

    Paper: Li et al. 2018 (Hyperband), arXiv:1603.06560
    """

    def __init__(self, trial: Any, metric: str) -> None:
        self.trial, self.metric = trial, metric
        self.pruned = False

    def after_evaluation(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        """Report; the last evaluation of a run prunes nothing."""
        if self.metric not in metrics:
            return
        self.trial.report(metrics[self.metric], trainer.state.evaluated.get("number", 1))
        if self.trial.should_prune() and not trainer.length.reached(trainer.state):
            self.pruned = True
            trainer.end("stopped by the search: other trials were better at this point")


def write_best(study: Any, settings: TuneSettings) -> Path | None:
    """The config of the best trial, ready to train; None where no trial was finished."""
    optuna = import_optuna()
    complete = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
    if not complete:
        return None
    edits = edits_of(study.best_trial.params) | {"model_dir": str(settings.out / "best")}
    path = settings.out / BEST
    save_config(edit_config(settings.config, edits), path)
    return path
