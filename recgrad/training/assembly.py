"""From a checked config to live objects: features, task, loaders, updater, hooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from recgrad.config import PipelineConfig, to_kwargs
from recgrad.data.features.base import Feature
from recgrad.data.features.build import build_features
from recgrad.data.loader import Loader, build_loader
from recgrad.embedding.build import build_sparse_optimizer
from recgrad.embedding.local.engine import LocalEngine
from recgrad.models.build import build_model
from recgrad.optim.averaging import ReestimatedBatchNorm
from recgrad.optim.from_config import build_updater
from recgrad.optim.roles import parameter_roles
from recgrad.optim.sparse import SparseOptimizer
from recgrad.optim.updater import Updater
from recgrad.training.hooks.base import Hook
from recgrad.training.hooks.checkpoints import SaveCheckpoints
from recgrad.training.hooks.console import build_console_sink
from recgrad.training.hooks.early_stop import EarlyStop, KeepBest, Watch
from recgrad.training.hooks.events import EventLog
from recgrad.training.hooks.log import Log, Sink
from recgrad.training.hooks.profile import ProfileSteps
from recgrad.training.hooks.tensorboard import TensorBoard
from recgrad.training.task import Task
from recgrad.training.trainer import RunLength


@dataclass(frozen=True)
class Training:
    """The live objects of a training run.

    Attributes:
        evaluate_ema: whether evaluation sees the moving average of the weights, if there is one.
        batch_norm: the statistics under averaged weights; an evaluation and the save after it share them.
    """

    task: Task
    sparse_optimizer: SparseOptimizer | None
    updater: Updater
    train_loader: Loader
    eval_loader: Loader | None
    evaluate_ema: bool = True
    batch_norm: ReestimatedBatchNorm = field(default_factory=ReestimatedBatchNorm)


def features_of(config: PipelineConfig) -> list[Feature]:
    """The encoders of all features of a config."""
    data = to_kwargs(config.data_config)
    return build_features(
        config.feature_configs, fg_mode=data["fg_mode"], multival_sep=data["fg_encoded_multival_sep"]
    )


def build_task(config: PipelineConfig, features: Sequence[Feature]) -> Task:
    """The model with its losses and metrics."""
    model = build_model(
        config.model_config,
        [feature.spec for feature in features],
        seed=config.train_config.seed,
        label_fields=list(config.data_config.label_fields),
    )
    return Task(model, sample_weight_fields=list(config.data_config.sample_weight_fields))


def local_engine(task: Task) -> LocalEngine | None:
    """The embedding engine of a task's model; None when no feature has ids."""
    engine = task.model.engine
    if engine is not None and not isinstance(engine, LocalEngine):
        raise TypeError(f"this run needs the local engine, got {type(engine).__name__}")
    return engine


def build_training(config: PipelineConfig) -> Training:
    """Everything that a training run needs."""
    features = features_of(config)
    task = build_task(config, features)
    settings = config.train_config
    engine = local_engine(task)
    sparse = None if engine is None else build_sparse_optimizer(engine, settings.sparse_optimizer)
    summaries = set(settings.tensorboard_summaries) if settings.use_tensorboard else set()
    updater = build_updater(
        settings,
        task.model.dense_named_parameters(),
        sparse,
        roles=parameter_roles(task.model),
        track_grad_norm=True,
        keep_gradients=bool(summaries & {"gradient", "gradient_norm"}),
    )
    train_loader = build_loader(
        config, config.train_input_path, features=features, training=True, seed=settings.seed
    )
    eval_loader = None
    if config.eval_input_path:
        eval_loader = build_loader(
            config, config.eval_input_path, features=features, training=False, seed=settings.seed
        )
    evaluation = to_kwargs(config.eval_config)
    return Training(task, sparse, updater, train_loader, eval_loader, evaluation.get("use_dense_ema", True))


def run_length(config: PipelineConfig) -> RunLength:
    """The length of the run; the check has seen to it that one of the two is set."""
    settings = config.train_config
    if settings.num_steps:
        return RunLength(num_steps=settings.num_steps)
    return RunLength(num_epochs=settings.num_epochs)


def build_hooks(config: PipelineConfig, model_dir: Path) -> list[Hook]:
    """The hooks that the config asks for, in the order they are called.

    What listens to evaluations comes before saving, so that checkpoints hold what it has heard.
    """
    settings = to_kwargs(config.train_config)
    sinks: list[Sink] = [build_console_sink(), EventLog(model_dir)]
    if settings["use_tensorboard"]:
        sinks.append(TensorBoard(model_dir, settings["tensorboard_summaries"]))
    hooks: list[Hook] = [Log(settings["log_step_count_steps"], sinks)]
    if settings["is_profiling"]:
        hooks.append(ProfileSteps(model_dir))
    export = to_kwargs(config.export_config)
    if export["exporter_type"] == "best":
        hooks.append(KeepBest(Watch(export["best_exporter_metric"], export["metric_larger_is_better"])))
    if config.train_config.HasField("early_stopping"):
        stopping = to_kwargs(config.train_config.early_stopping)
        watch = Watch(stopping["metric"], stopping["mode"] == "max", stopping["min_delta"])
        hooks.append(EarlyStop(watch, stopping["patience"]))
    epochs = settings.get("save_checkpoints_epochs", 0)
    hooks.append(
        SaveCheckpoints(every_steps=0 if epochs else settings["save_checkpoints_steps"], every_epochs=epochs)
    )
    return hooks
