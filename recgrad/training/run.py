"""Train and evaluate from a config: what the commands and `recgrad.train` do."""

from __future__ import annotations

import logging
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from recgrad.config import PipelineConfig
from recgrad.config.load import CONFIG_FILE
from recgrad.config.messages import shortest_float
from recgrad.data.features.base import Feature
from recgrad.data.features.build import features_of
from recgrad.data.loader import build_loader
from recgrad.data.position import FROM_WEIGHTS
from recgrad.errors import RecgradError
from recgrad.models.targets import find_targets
from recgrad.optim.precision import check_precision, set_tf32
from recgrad.training.assembly import (
    Training,
    build_hooks,
    build_task,
    build_training,
    progress_every,
    run_length,
    uses_ema,
)
from recgrad.training.capture import capture, load_weights
from recgrad.training.catalogue import build_catalogue
from recgrad.training.checkpoint import (
    CheckpointManager,
    Snapshot,
    read_checkpoint,
    resolve_checkpoint,
)
from recgrad.training.compilers import compile_for_ranks
from recgrad.training.deltas import build_delta_hooks
from recgrad.training.evaluator import Progress, evaluated_weights
from recgrad.training.evaluator import evaluate as evaluate_task
from recgrad.training.hook import Hook
from recgrad.training.hooks.console import log_progress
from recgrad.training.model_lock import hold_model_dir
from recgrad.training.own_tables import with_own_rows
from recgrad.training.preflight import ConfigSource, meeting_timeout, prepare_config
from recgrad.training.processes import Processes, choose_device, open_processes
from recgrad.training.runtime import (
    computing,
    seed_everything,
    untouched_generators,
)
from recgrad.training.signals import StopRequest
from recgrad.training.start import find_start, open_checkpoints, starting_state, write_effective_config
from recgrad.training.state import TrainResult, TrainState
from recgrad.training.step_threads import fit_threads
from recgrad.training.task import Task
from recgrad.training.trainer import Trainer

_log = logging.getLogger("recgrad.training")

RANK_SEED = 1_000_003
"""What the seeds of two ranks differ by, so that their dropout does."""


@computing()
def train(
    config: ConfigSource,
    *,
    train_input_path: Any = None,
    eval_input_path: Any = None,
    model_dir: str | Path | None = None,
    continue_train: bool = False,
    fine_tune_checkpoint: str | None = None,
    edit_config_json: str | Mapping[str, Any] | None = None,
    ignore_restore_optimizer: bool = False,
    device: str | torch.device = "auto",
    custom_code: bool = True,
    hooks: Sequence[Hook] = (),
) -> TrainResult:
    """Train from a config: a path, a message or a dict. The other arguments override it.

    Input paths may be rows in memory instead: pandas or polars DataFrames, Arrow tables, dicts of columns or
    lists of dicts. They are kept in the folder data/ of the model_dir, so that the run can be resumed,
    evaluated and exported like any other.

    Under torchrun every process calls this, and they train together. The dense half computes on
    `device`: auto (GPUs where each process can have one), cpu or cuda; a torch.device is
    taken as it is. Tables stay in host memory with one process. Without `custom_code` a config that
    names classes by import path is refused before any is imported. `hooks` are called before those of
    the config, on every process.
    """
    timeout_secs = meeting_timeout(config, edit_config_json)
    edit_config_json, paths = with_own_rows(
        config,
        edit_config_json,
        model_dir,
        {"train_input_path": train_input_path, "eval_input_path": eval_input_path},
    )
    with open_processes(timeout_secs, device=device) as processes, ExitStack() as held:
        effective, report = prepare_config(
            config,
            edit_config_json=edit_config_json,
            model_dir=model_dir,
            **paths,
            fine_tune_checkpoint=fine_tune_checkpoint,
            ranks=processes.world_size if processes.distributed else 0,
            custom_code=custom_code,
        )
        report.raise_problems()
        for hint in report.hints:
            _log.warning("hint: %s", hint)
        settings = effective.train_config
        processes.set_timeout(settings.process_timeout_secs)
        folder = Path(effective.model_dir)
        checkpoints = open_checkpoints(effective, processes)
        # A launcher that starts the run again after a process died wants it to resume.
        resumes = continue_train or processes.restarts > 0
        if ignore_restore_optimizer and not (resumes or settings.fine_tune_checkpoint):
            raise RecgradError(
                "--ignore_restore_optimizer: nothing is restored; give --continue_train or a "
                "fine_tune_checkpoint as well, or leave it out"
            )
        processes.on_main(lambda: held.enter_context(hold_model_dir(folder)))
        start_from = processes.on_main(lambda: find_start(folder, checkpoints, resumes, processes.doing))
        seed_everything(settings.seed)
        processes.doing("building the model")
        training = build_training(effective, processes)
        compile_for_ranks(training.task.model.kernels(training.sparse_optimizer), processes)
        fit_threads(training.task.model, effective.data_config.batch_size)
        seed_everything(settings.seed + RANK_SEED * processes.rank)
        state = starting_state(training, effective, start_from, ignore_restore_optimizer)
        if processes.is_main:
            write_effective_config(effective, folder)
            _say_device(processes.device)
        again = f" --device {device}" if isinstance(device, str) and device != "auto" else ""
        again += "" if custom_code else " --no_custom_code"
        return _run(effective, training, state, checkpoints, folder, again, hooks)


@computing()
def evaluate(
    config: ConfigSource,
    *,
    checkpoint_path: str | Path | None = None,
    eval_input_path: str | None = None,
    edit_config_json: str | Mapping[str, Any] | None = None,
    device: str | torch.device = "auto",
    stop: StopRequest | None = None,
    custom_code: bool = True,
    progress: Progress | None = None,
    doing: Callable[[str], None] | None = None,
) -> dict[str, float]:
    """The metrics of a checkpoint, the newest of the config's model_dir by default.

    `device` and `custom_code` are as for `train`. `progress` is called with the number of batches done
    and of all; without it a line is logged every eval_config.log_step_count_steps batches, if that is set,
    and `doing` is told of each batch.

    Raises:
        InterruptedBySignal: `stop` was asked for.
    """
    chosen = choose_device(device)
    trained = load_trained(
        config,
        checkpoint_path,
        eval_input_path=eval_input_path,
        edit_config_json=edit_config_json,
        device=chosen,
        custom_code=custom_code,
    )
    effective = trained.config
    loader = build_loader(
        effective,
        effective.eval_input_path,
        features=trained.features,
        targets=find_targets(effective),
        training=False,
        pin=chosen.type == "cuda",
    )
    settings = effective.eval_config
    catalogue = build_catalogue(effective, trained.features, trained.task)
    metrics = evaluate_task(
        trained.task,
        loader,
        num_steps=settings.num_steps,
        progress=progress or log_progress(progress_every(effective), doing),
        stop=stop,
        catalogue=catalogue,
    )
    return metrics if catalogue is None else {**metrics, **catalogue.baseline_metrics()}


@dataclass(frozen=True)
class Trained:
    """A model with the weights of a checkpoint.

    Attributes:
        config: as it runs.
        task: in evaluation.
        features: of the config.
        step: of the checkpoint.
        metrics: of the evaluation at that step, if there was one.
        checkpoint: its folder; None of weights that come from nowhere.
        deltas: where its stream of deltas stood, see `TrainState`.
    """

    config: PipelineConfig
    task: Task
    features: list[Feature]
    step: int
    metrics: Mapping[str, float]
    checkpoint: Path | None = None
    deltas: Mapping[str, Any] = field(default_factory=dict)


def load_trained(
    config: ConfigSource,
    checkpoint_path: str | Path | None,
    *,
    eval_input_path: str | None = None,
    edit_config_json: str | Mapping[str, Any] | None = None,
    exporting: bool = False,
    device: torch.device,
    custom_code: bool = True,
) -> Trained:
    """A task with the weights of a checkpoint, for evaluation and prediction on `device`.

    The checkpoint is the one named, or of the config's model_dir the best where the config
    keeps one (exporter_type best), else the newest. `exporting` goes by
    export_config.use_dense_ema where it is set, instead of eval_config's, and by its precision.
    """
    effective, report = prepare_config(
        config,
        edit_config_json=edit_config_json,
        eval_input_path=eval_input_path,
        ranks=0,
        custom_code=custom_code,
    )
    report.raise_problems()
    features = features_of(effective)
    task = build_task(effective, features)
    path = resolve_checkpoint(checkpoint_path) if checkpoint_path else _chosen_checkpoint(effective)
    snapshot = read_checkpoint(path)
    load_weights(snapshot, task, use_ema=uses_ema(effective, exporting=exporting))
    task.place(device)
    task.eval()
    if exporting:
        exports = effective.export_config
        task.predicts_in = check_precision(exports.mixed_precision)
        set_tf32(cudnn=exports.cudnn_allow_tf32, matmul=exports.cuda_matmul_allow_tf32)
    tree: Any = snapshot.tree
    deltas = tree.get("state", {}).get("deltas", {})
    return Trained(effective, task, features, snapshot.step, _evaluated(snapshot), path, deltas)


def _evaluated(snapshot: Snapshot) -> dict[str, float]:
    """The metrics of the evaluation at a checkpoint's step, if there was one."""
    tree: Any = snapshot.tree
    evaluated = tree.get("state", {}).get("evaluated", {})
    return dict(evaluated.get("metrics", {})) if evaluated.get("step") == snapshot.step else {}


def _chosen_checkpoint(config: PipelineConfig) -> Path:
    """The best checkpoint of the model_dir where the config keeps one, else the newest."""
    if config.export_config.exporter_type == "best":
        checkpoints = CheckpointManager(config.model_dir)
        best = checkpoints.best()
        if best is not None:
            _log.info("using the best checkpoint, of step %d", best)
            return checkpoints.path(best)
    return resolve_checkpoint(config.model_dir)


def _run(
    config: PipelineConfig,
    training: Training,
    state: TrainState,
    checkpoints: CheckpointManager,
    folder: Path,
    flags: str,
    own_hooks: Sequence[Hook] = (),
) -> TrainResult:
    """Train from `state` on; `flags` are those that a command to resume needs."""

    def evaluate_now(trainer: Trainer) -> Mapping[str, float]:
        assert training.eval_loader is not None
        if catalogue is not None:
            catalogue.say_baseline()
        with evaluated_weights(training, trainer.stop):
            return evaluate_task(
                training.task,
                training.eval_loader,
                num_steps=config.eval_config.num_steps,
                progress=partial(_tell_hooks, trainer),
                stop=trainer.stop,
                processes=training.processes,
                catalogue=catalogue,
            )

    catalogue = build_catalogue(config, training.features, training.task, training.processes)

    def save_now(trainer: Trainer) -> None:
        checkpoints.save(capture(training, trainer.state))
        if trainer.state.best.get("step") == trainer.state.step:
            checkpoints.mark_best(trainer.state.step)

    processes = training.processes
    with StopRequest(alone=not processes.distributed) as stop, _given_up_on_error(checkpoints):
        # Libraries draw from Python's generator while they are imported; a run's state is its own.
        with untouched_generators():
            # Where a whole catalogue is ranked, that decides rather than a sample of it.
            directions = {} if catalogue is None else catalogue.directions()
            directions |= training.task.metric_directions()
            hooks = build_hooks(config, folder, writes=processes.is_main, directions=directions)
            hooks = [*own_hooks, *build_delta_hooks(config, training, folder), *hooks]
        trainer = Trainer(
            task=training.task,
            loader=training.train_loader,
            updater=training.updater,
            length=run_length(config),
            hooks=hooks,
            state=state,
            stop=stop,
            skip_non_finite=config.train_config.on_nan == config.train_config.SKIP,
            processes=processes,
            uneven=config.train_config.check_all_workers_data_status,
            evaluate=None if training.eval_loader is None else evaluate_now,
            save=save_now,
            quorum=shortest_float(config.train_config.save_checkpoints_timestamp_quorum),
        )
        trainer.run()
        processes.doing(f"saving the checkpoint of step {state.step}", tell=True)
        checkpoints.wait()
    return TrainResult(
        model_dir=folder,
        step=state.step,
        metrics=dict(state.evaluated.get("metrics", {})),
        samples_per_sec=trainer.samples_here / max(trainer.elapsed_secs, 1e-9),
        stopped=state.stopped,
        exit_code=stop.exit_code,
        hint=_how_to_resume(trainer, _command_to_resume(folder, processes) + flags),
        evaluated_step=state.evaluated.get("step"),
        evaluations=state.evaluated.get("number", 0),
        best_metric=state.best_evaluation.get("metric", ""),
        best_step=state.best_evaluation.get("step"),
        best_metrics=dict(state.best_evaluation.get("metrics", {})),
    )


def _tell_hooks(trainer: Trainer, done: int, total: int | None) -> None:
    for hook in trainer.hooks:
        hook.during_evaluation(trainer, done, total)


def _how_to_resume(trainer: Trainer, command: str) -> str:
    """After a signal, where the run was and the command to resume; what to change if nothing was left."""
    state = trainer.state
    if trainer.stop.signal is not None:
        where = "in the evaluation of" if state.evaluation_due else "after"
        return f"stopped {where} step {state.step}; resume with: {command}"
    if not trainer.samples_here and not state.stopped:
        limit = "num_steps" if trainer.length.num_steps is not None else "num_epochs"
        return (
            f"nothing was left to train after step {state.step}; raise train_config.{limit} to train more, "
            f"or, to train on new data, {FROM_WEIGHTS}"
        )
    return ""


def _command_to_resume(folder: Path, processes: Processes) -> str:
    config = shlex.quote(str(folder / CONFIG_FILE))
    if processes.environment.local_world_size < processes.world_size:
        return f"torchrun … -m recgrad.train_eval {config} --continue_train"
    several = f" --nproc {processes.world_size}" if processes.distributed else ""
    return f"recgrad train {config} --continue_train{several}"


def _say_device(device: torch.device) -> None:
    if device.type == "cuda":
        _log.info("the dense half computes on %s (%s)", device, torch.cuda.get_device_name(device))


@contextmanager
def _given_up_on_error(checkpoints: CheckpointManager) -> Iterator[None]:
    """Do not wait for other ranks' part of a checkpoint when the run has failed."""
    try:
        yield
    except BaseException:
        checkpoints.give_up()
        raise
