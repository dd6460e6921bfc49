"""Precision, clipping, processes, early stopping, summaries and export."""

from __future__ import annotations

from recgrad.check.node import Node
from recgrad.check.rule import CHECKS, Context
from recgrad.config.values import show
from recgrad.embedding.spec import COMPUTE_KERNELS, SHARDING_TYPES

_PRECISIONS = ("", "BF16", "FP16")
SUMMARIES = (
    "loss",
    "learning_rate",
    "parameter",
    "global_gradient_norm",
    "gradient_norm",
    "gradient",
)
"""What tensorboard_summaries may name."""
_EXPORTERS = ("latest", "best")
TRACKER_NAMES = ("mlflow", "wandb")
"""What trackers may begin with."""


@CHECKS.register("precision")
def check_precision(context: Context) -> None:
    """Mixed precision by a name that exists."""
    for node in context.of("TrainConfig", "ExportConfig"):
        context.one_of(node, "mixed_precision", _PRECISIONS)


@CHECKS.register("clipping")
def check_clipping(context: Context) -> None:
    """Settings of clipping have an effect with its type."""
    for node in context.of("GradClipping"):
        clipping = node.message
        if clipping.clipping_type == "none":
            _without_effect(
                context, node, ("max_gradient", "norm_type", "enable_global_grad_clip"), "norm or value"
            )
        elif clipping.clipping_type == "value":
            _without_effect(context, node, ("norm_type", "enable_global_grad_clip"), "norm")


@CHECKS.register("processes")
def check_processes(context: Context) -> None:
    """Processes that wait for each other at all."""
    for node in context.of("TrainConfig"):
        context.ranged(node, "process_timeout_secs", 1)


@CHECKS.register("sharding")
def check_sharding(context: Context) -> None:
    """Tables spread over processes in ways, and with kernels, that the engine has."""
    for node in context.of("ParameterConstraints"):
        for i, name in enumerate(node.message.sharding_types):
            if name not in SHARDING_TYPES:
                context.unknown(node.at(f"sharding_types[{i}]"), "sharding type", name, SHARDING_TYPES)
        for i, name in enumerate(node.message.compute_kernels):
            if name not in COMPUTE_KERNELS:
                context.unknown(node.at(f"compute_kernels[{i}]"), "compute kernel", name, COMPUTE_KERNELS)


@CHECKS.register("summaries")
def check_summaries(context: Context) -> None:
    """Summaries by names that exist."""
    for node in context.of("TrainConfig"):
        for i, name in enumerate(node.message.tensorboard_summaries):
            if name not in SUMMARIES:
                context.unknown(f"{node.at('tensorboard_summaries')}[{i}]", "summary", name, SUMMARIES)
        if node.message.tensorboard_summaries and not node.message.use_tensorboard:
            path = f"{node.at('tensorboard_summaries')}[0]"
            context.problem(path, "has no effect with use_tensorboard: false; keep one")
        if node.message.HasField("fine_tune_ckpt_param_map") and not node.message.fine_tune_checkpoint:
            context.problem(node.at("fine_tune_ckpt_param_map"), "needs a fine_tune_checkpoint")


@CHECKS.register("trackers")
def check_trackers(context: Context) -> None:
    """Trackers by names that exist, each once."""
    for node in context.of("TrainConfig"):
        specs = list(node.message.trackers)
        for i, spec in enumerate(specs):
            path = f"{node.at('trackers')}[{i}]"
            name = spec.partition(":")[0]
            if name not in TRACKER_NAMES:
                context.unknown(path, "tracker", name, TRACKER_NAMES)
            elif specs.index(spec) < i:
                context.problem(path, f"{show(spec)} is given twice; keep one")


@CHECKS.register("deltas")
def check_deltas(context: Context) -> None:
    """Deltas at some interval."""
    for node in context.of("DeltaEmbeddingDumpConfig"):
        context.ranged(node, "dump_interval_steps", 1)
        for name, least in (("dump_interval_minutes", 1), ("dump_interval_secs", 0.1)):
            if node.message.HasField(name):
                context.ranged(node, name, least)
        kinds = ("dump_interval_steps", "dump_interval_minutes", "dump_interval_secs")
        first, *others = [name for name in kinds if node.message.HasField(name)] or [""]
        for name in others:
            context.problem(node.at(name), f"is beside {first}; keep one")
        if not node.message.file_prefix or "/" in node.message.file_prefix:
            context.problem(node.at("file_prefix"), "must be a file name without '/'")


@CHECKS.register("early stopping")
def check_early_stopping(context: Context) -> None:
    """Early stopping watches a metric of the evaluation."""
    for node in context.of("EarlyStopping"):
        context.one_of(node, "mode", ("max", "min"))
        context.ranged(node, "patience", 1)
        context.ranged(node, "min_delta", 0)
        if not node.message.metric:
            context.problem(node.at("metric"), "is empty; name the metric to watch")
        if not context.config.eval_input_path:
            context.problem(node.path, "is driven by evaluation; set eval_input_path")


@CHECKS.register("export")
def check_export(context: Context) -> None:
    """Exporters by names that exist, and an average of weights only where one is kept."""
    for node in context.of("ExportConfig"):
        context.one_of(node, "exporter_type", _EXPORTERS)
        if node.message.exporter_type == "best" and not node.message.best_exporter_metric:
            context.problem(node.at("best_exporter_metric"), "is empty; name the metric that decides")
    has_ema = context.config.train_config.dense_optimizer.HasField("ema")
    for node in context.of("EvalConfig", "ExportConfig"):
        if node.message.use_dense_ema and not has_ema:
            context.problem(node.at("use_dense_ema"), "needs an ema in train_config.dense_optimizer")


def _without_effect(context: Context, node: Node, fields: tuple[str, ...], wanted: str) -> None:
    for field in fields:
        descriptor = node.message.DESCRIPTOR.fields_by_name[field]
        if node.message.HasField(field) and getattr(node.message, field) != descriptor.default_value:
            kind = show(node.message.clipping_type)
            context.problem(node.at(field), f"has no effect with clipping_type {kind}; set it to {wanted}")
