"""From a checked config to live objects: features, task, loaders, updater, hooks."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from recgrad.config import PipelineConfig, to_kwargs
from recgrad.data.features.base import Feature
from recgrad.data.features.build import features_of
from recgrad.data.loader import Loader, build_loader
from recgrad.embedding.build import build_sparse_optimizer
from recgrad.embedding.engine import EngineMaker
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.errors import RecgradError
from recgrad.models.build import build_model
from recgrad.models.table_kernels import kernels_of_tables
from recgrad.models.targets import find_targets
from recgrad.optim.averaging import ReestimatedBatchNorm
from recgrad.optim.clipping import reduce_over_processes
from recgrad.optim.from_config import build_updater
from recgrad.optim.roles import parameter_roles
from recgrad.optim.sparse import SparseOptimizer
from recgrad.optim.updater import Updater
from recgrad.training.conditions import sharding_versions
from recgrad.training.hook import Hook
from recgrad.training.hooks.checkpoints import SaveCheckpoints
from recgrad.training.hooks.console import build_console_sink
from recgrad.training.hooks.early_stop import BestEvaluation, EarlyStop, KeepBest, Watch
from recgrad.training.hooks.events import EventLog
from recgrad.training.hooks.log import Log, Sink
from recgrad.training.hooks.profile import ProfileSteps
from recgrad.training.hooks.tensorboard import TensorBoard
from recgrad.training.hooks.tracking import open_trackers
from recgrad.training.processes import Processes
from recgrad.training.synchronize import Averager
from recgrad.training.task import Task
from recgrad.training.trainer import RunLength

_log = logging.getLogger("recgrad.training")


@dataclass(frozen=True)
class Training:
    """The live objects of a training run.

    Attributes:
        features: all features of the config.
        evaluate_ema: whether evaluation sees the moving average of the weights, if there is one.
        processes: all ranks of the run.
        batch_norm: the statistics under averaged weights; an evaluation and the save after it share them.
    """

    task: Task
    sparse_optimizer: SparseOptimizer | None
    updater: Updater
    train_loader: Loader
    eval_loader: Loader | None
    evaluate_ema: bool = True
    features: Sequence[Feature] = ()
    processes: Processes = field(default_factory=Processes)
    batch_norm: ReestimatedBatchNorm = field(default_factory=ReestimatedBatchNorm)


def build_task(
    config: PipelineConfig, features: Sequence[Feature], engine: EngineMaker | None = None
) -> Task:
    """The model with its losses and metrics; `engine` makes its embedding engine, the local one if None."""
    model = build_model(
        config.model_config,
        [feature.spec for feature in features],
        seed=config.train_config.seed,
        label_fields=list(config.data_config.label_fields),
        engine=engine,
    )
    return Task(model, sample_weight_fields=list(config.data_config.sample_weight_fields))


def build_training(config: PipelineConfig, processes: Processes | None = None) -> Training:
    """Everything that a training run needs; on several ranks, what this one needs.

    The dense half is built on the host, so that its weights are the same whatever it computes on.
    """
    processes = processes or Processes()
    features = features_of(config)
    settings = config.train_config
    task = build_task(config, features, sharded_engine(config, features, processes))
    task.place(processes.device)
    engine = task.model.engine
    sparse = None if engine is None else build_sparse_optimizer(engine, settings.sparse_optimizer)
    summaries = set(settings.tensorboard_summaries) if settings.use_tensorboard else set()
    several = processes.world_size > 1
    updater = build_updater(
        settings,
        task.model.dense_named_parameters(),
        sparse,
        roles=parameter_roles(task.model),
        device_type=processes.device.type,
        reduce=reduce_over_processes if several else None,
        synchronize=Averager(processes, task.model).gradients if several else None,
        track_grad_norm=True,
        keep_gradients=bool(summaries & {"gradient", "gradient_norm"}),
    )

    if updater.watches and not config.eval_input_path:
        raise RecgradError("train_config: a schedule waits for evaluations; set eval_input_path")

    targets = find_targets(config)

    def loader(path: str, training: bool) -> Loader:
        return build_loader(
            config,
            path,
            features=features,
            targets=targets,
            training=training,
            seed=settings.seed,
            rank=processes.rank,
            world_size=processes.world_size,
            pin=processes.device.type == "cuda",
        )

    return Training(
        task,
        sparse,
        updater,
        loader(config.train_input_path, training=True),
        loader(config.eval_input_path, training=False) if config.eval_input_path else None,
        uses_ema(config),
        features,
        processes,
    )


def uses_ema(config: PipelineConfig, *, exporting: bool = False) -> bool:
    """Whether evaluation, or export, sees the moving average of the weights, if there is one."""
    for settings in (config.export_config, config.eval_config) if exporting else (config.eval_config,):
        if settings.HasField("use_dense_ema"):
            return settings.use_dense_ema
    return True


def sharded_engine(
    config: PipelineConfig, features: Sequence[Feature], processes: Processes
) -> EngineMaker | None:
    """What makes the engine of several ranks; None for one process, which has the local one."""
    if not processes.distributed:
        return None
    try:
        from recgrad.embedding.sharded import quiet

        with quiet():
            from recgrad.embedding.sharded.engine import ShardedEngine
    except ImportError as error:
        raise RecgradError(
            f"several processes need TorchRec ({error}); install it with: pip install fbgemm-gpu-cpu "
            "iopath tensordict pyre-extensions tqdm && pip install --no-deps torchrec"
        ) from error
    except OSError as error:  # a build of FBGEMM for another torch
        found = ", ".join(f"{name} {version}" for name, version in sharding_versions().items())
        raise RecgradError(
            f"several processes need TorchRec, whose FBGEMM does not load with torch {torch.__version__} "
            f"({found}: {error}); install the releases of torchrec, fbgemm-gpu-cpu and torch that go together"
        ) from error

    def make(tables: Sequence[TableSpec], lookups: Sequence[LookupSpec], **kwargs: Any) -> ShardedEngine:
        engine = ShardedEngine(
            tables,
            lookups,
            weighted=any(feature.spec.weighted for feature in features),
            batch_size=config.data_config.batch_size,
            local_world_size=processes.environment.local_world_size,
            group=processes.group,
            half=config.train_config.half_precision_exchange,
            choices=kernels_of_tables(config, tables, lookups, [processes.device.type]),
            device=processes.device,
            **kwargs,
        )
        _log.info("tables over %d processes:\n%s", processes.world_size, engine.plan_text)
        return engine

    return make


def run_length(config: PipelineConfig) -> RunLength:
    """The length of the run; the check has seen to it that one of the two is set."""
    settings = config.train_config
    if settings.num_steps:
        return RunLength(num_steps=settings.num_steps)
    return RunLength(num_epochs=settings.num_epochs)


def progress_every(config: PipelineConfig) -> int:
    """Batches between two lines about an evaluation that is under way; 0, none, unless the config says."""
    settings = config.eval_config
    return settings.log_step_count_steps if settings.HasField("log_step_count_steps") else 0


def build_hooks(
    config: PipelineConfig,
    model_dir: Path,
    *,
    writes: bool = True,
    directions: Mapping[str, bool] | None = None,
) -> list[Hook]:
    """The hooks that the config asks for, in the order they are called.

    What listens to evaluations comes before saving, so that checkpoints hold what it has heard.

    Args:
        writes: False, for all ranks but the first, shows and logs nothing.
        directions: `Task.metric_directions`, by which the best evaluation is told when nothing in the
            config says what is best.
    """
    settings = to_kwargs(config.train_config)
    kept, stopping, plateaus = _kept_by(config), _stopped_by(config), _reduced_by(config)
    asked = [watch for watch in (kept, stopping, *plateaus) if watch is not None]
    first = [Watch(name, higher) for name, higher in (directions or {}).items()]
    sinks: list[Sink] = [build_console_sink(progress_every(config)), EventLog(model_dir)] if writes else []
    if settings["use_tensorboard"] and writes:
        sinks.append(TensorBoard(model_dir, settings["tensorboard_summaries"]))
    if writes:
        sinks += open_trackers(config, model_dir)
    hooks: list[Hook] = [BestEvaluation(asked + first), Log(settings["log_step_count_steps"], sinks)]
    if settings["is_profiling"] and writes:
        hooks.append(ProfileSteps(model_dir))
    if kept is not None:
        hooks.append(KeepBest(kept))
    if stopping is not None:
        hooks.append(EarlyStop(stopping, config.train_config.early_stopping.patience))
    epochs = settings.get("save_checkpoints_epochs", 0)
    hooks.append(
        SaveCheckpoints(
            every_steps=0 if epochs else settings["save_checkpoints_steps"],
            every_epochs=epochs,
            every_event_secs=settings["save_checkpoints_timestamp_interval"],
            event_times=settings["save_checkpoints_timestamps"],
        )
    )
    return hooks


def _kept_by(config: PipelineConfig) -> Watch | None:
    """What the best checkpoint is best by."""
    export = to_kwargs(config.export_config)
    if export["exporter_type"] != "best":
        return None
    name, larger = export["best_exporter_metric"], export["metric_larger_is_better"]
    return Watch(name, larger, where="export_config.best_exporter_metric")


def _stopped_by(config: PipelineConfig) -> Watch | None:
    """What early stopping goes by."""
    if not config.train_config.HasField("early_stopping"):
        return None
    stopping = to_kwargs(config.train_config.early_stopping)
    larger, where = stopping["mode"] == "max", "train_config.early_stopping.metric"
    return Watch(stopping["metric"], larger, stopping["min_delta"], where)


def _reduced_by(config: PipelineConfig) -> list[Watch]:
    """What schedules that wait for evaluations go by."""
    halves = (config.train_config.dense_optimizer, config.train_config.sparse_optimizer)
    sections = [section for half in halves for section in (half, *half.part_optimizers)]
    plateaus = [
        section.reduce_on_plateau_learning_rate
        for section in sections
        if section.HasField("reduce_on_plateau_learning_rate")
    ]
    return [Watch(plateau.metric, plateau.mode == "max") for plateau in plateaus]
