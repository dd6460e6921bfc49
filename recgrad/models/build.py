"""From a ModelConfig to a live model.

The config has been checked (`recgrad.config.check_config`), so only what the check cannot know
is looked at here: what custom code brings, and what a model makes of its settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import Message

from recgrad.config.messages import chosen, struct_to_dict, to_kwargs
from recgrad.config.proto import model_pb2
from recgrad.data.features.spec import FeatureSpec
from recgrad.embedding.engine import EngineMaker
from recgrad.errors import ConfigError, Problem
from recgrad.losses import Loss, build_loss
from recgrad.losses.weighting import TaskWeighting
from recgrad.metrics import build_metric, build_train_metric
from recgrad.models.base import MODELS, Model
from recgrad.models.group_needs import group_problems
from recgrad.models.group_plan import EncoderSpec, FeatureGroup, SequenceGroup
from recgrad.models.tasks import TaskSpec

CUSTOM = "custom_model"
"""The config name of a model of the user's own, which no registry holds."""

TOWERS = "task_towers"
"""The field of a multi-task model's message that holds its towers."""

FUSED = "fusion_mtl_tower"
"""The field of a message whose tasks share one tower, and have their own `task_configs` in it."""

SETTINGS = {TOWERS: "towers"}
"""What classes call a field of their message, where that is another name."""

__all__ = ["TaskSpec", "build_groups", "build_model", "build_tasks"]


def build_model(
    config: model_pb2.ModelConfig,
    features: Sequence[FeatureSpec],
    *,
    seed: int = 0,
    label_fields: Sequence[str] = (),
    engine: EngineMaker | None = None,
) -> Model:
    """The model that a config describes, with weights drawn from `seed`.

    Args:
        config: the model_config.
        features: all features that batches carry, in their order.
        seed: of all weights, dense and sparse.
        label_fields: data_config.label_fields; a single-task model learns the first.
        engine: makes the embedding engine from (tables, lookups, keys=, sequence_keys=, seed=);
            the local one if None.
    """
    choice = chosen(config, "model")
    assert choice is not None
    name, message = choice
    cls, params = _model_class(name, message)
    groups = build_groups(config)
    types = [(group.name, group.kind) for group in groups]
    if odd := list(group_problems(name, cls, params, types)):
        raise ConfigError(Problem(f"model_config.{where}", what) for where, what in odd)
    tasks = build_tasks(config, message, label_fields, cls)
    dropout = None
    if config.HasField("variational_dropout"):
        given = to_kwargs(config.variational_dropout)
        dropout = {
            "regularization_lambda": given["regularization_lambda"],
            "embedding_wise": given["embedding_wise_variational_dropout"],
        }
    try:
        model = cls(
            features,
            groups,
            tasks=tasks,
            seed=seed,
            variational_dropout=dropout,
            compile=config.compile,
            engine=engine,
            **params,
        )
    except (TypeError, ValueError) as error:
        raise ConfigError([Problem(f"model_config.{name}", str(error))]) from error
    model.use_pareto_loss_weight = config.use_pareto_loss_weight
    return model


def _model_class(name: str, message: Any) -> tuple[type[Model], dict[str, Any]]:
    """The class of a model and the arguments that its message gives."""
    if name != CUSTOM:
        params = plain(message)
        return MODELS[name], {SETTINGS.get(key, key): value for key, value in params.items()}
    cls = MODELS.resolve(message.class_path)
    if not issubclass(cls, Model):
        raise ConfigError(
            f"model_config.{CUSTOM}.class_path: {message.class_path} is not a subclass of "
            "recgrad.models.base.Model; subclass it and write build and predict"
        )
    return cls, struct_to_dict(message.params)


def task_messages(message: Any) -> list[tuple[str, Any]] | None:
    """Places and messages of the tasks of a multi-task model; None for a model of one task."""
    if TOWERS in message.DESCRIPTOR.fields_by_name:
        return [(f"{TOWERS}[{i}]", tower) for i, tower in enumerate(message.task_towers)]
    if FUSED in message.DESCRIPTOR.fields_by_name:
        tasks = enumerate(message.fusion_mtl_tower.task_configs)
        return [(f"{FUSED}.task_configs[{i}]", task) for i, task in tasks]
    return None


def task_name(message: Any) -> str:
    """What the message of a task calls it."""
    named = "task_name" if "task_name" in message.DESCRIPTOR.fields_by_name else "tower_name"
    return str(getattr(message, named))


def plain(message: Message) -> dict[str, Any]:
    """The fields of a message as keyword arguments, messages inside it as dicts."""
    return {key: _plain(value) for key, value in to_kwargs(message).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return plain(value)
    return [_plain(item) for item in value] if isinstance(value, list) else value


def build_groups(config: model_pb2.ModelConfig) -> list[FeatureGroup]:
    """The feature groups of a config."""
    return [
        FeatureGroup(
            group.group_name,
            tuple(group.feature_names),
            model_pb2.FeatureGroupType.Name(group.group_type),
            tuple(
                SequenceGroup(
                    s.group_name or group.group_name, tuple(s.feature_names), s.embedding_name_suffix
                )
                for s in group.sequence_groups
            ),
            tuple(map(_encoder, group.sequence_encoders)),
            group.embedding_name_suffix,
            model_pb2.FeatureGroupConfig.Combine.Name(group.combine),
        )
        for group in config.feature_groups
    ]


def _encoder(config: Message) -> EncoderSpec:
    choice = chosen(config, "seq_module")
    assert choice is not None
    kind, message = choice
    params = plain(message)
    return EncoderSpec(kind, params.pop("input", ""), params, params.pop("name", ""))


def build_tasks(
    config: model_pb2.ModelConfig, message: Any, label_fields: Sequence[str], cls: type[Model]
) -> tuple[TaskSpec, ...]:
    """The tasks of a config: one for each task tower of the model's message, or one for the model."""
    messages = task_messages(message)
    if messages is not None:
        return tuple(_tower_task(place, task) for place, task in messages)
    return cls.tasks_of(_single_task(config, label_fields, cls))


def _single_task(config: model_pb2.ModelConfig, label_fields: Sequence[str], cls: type[Model]) -> TaskSpec:
    return TaskSpec(
        label_name=label_fields[0] if label_fields else "",
        retrieval=cls.retrieval,
        **_objectives(config, "model_config", cls.retrieval or cls.learns_codes),
    )


def _tower_task(place: str, tower: Any) -> TaskSpec:
    name = task_name(tower)
    return TaskSpec(
        name=name,
        label_name=tower.label_name,
        weighting=TaskWeighting.from_config(tower),
        bitmask=_signed(getattr(tower, "task_bitmask", 0)),
        **_objectives(tower, f"{place.partition('[')[0]}[{name}]"),
    )


def _signed(bits: int) -> int:
    """The same 64 bits as a signed number."""
    return bits - (1 << 64) if bits >= 1 << 63 else bits


def _objectives(config: Any, where: str, unscored: bool = False) -> dict[str, Any]:
    """The losses and metrics of a tower, or of a model of one task, and what they ask of its output."""
    num_class, losses = config.num_class, tuple(map(build_loss, config.losses))
    return {
        "num_class": num_class,
        "num_logits": 1 if unscored else _num_logits(where, losses, num_class),
        "losses": losses,
        "metrics": tuple(build_metric(metric, num_class=num_class) for metric in config.metrics),
        "train_metrics": tuple(
            build_train_metric(metric, num_class=num_class) for metric in config.train_metrics
        ),
    }


def _num_logits(where: str, losses: Sequence[Loss], num_class: int) -> int:
    """Width of the output that all losses can use."""
    widths: dict[int, str] = {}
    for loss in losses:
        if loss.num_logits is None and num_class < 2:
            raise ConfigError(f"{where}.num_class: {loss.config_name} needs at least 2, got {num_class}")
        if loss.num_logits is not None and num_class not in (1, loss.num_logits):
            raise ConfigError(
                f"{where}.num_class: {loss.config_name} needs {loss.num_logits}, got {num_class}"
            )
        widths[loss.num_logits or num_class] = loss.config_name
    if len(widths) > 1:
        pairs = ", ".join(f"{name} {width}" for width, name in widths.items())
        raise ConfigError(f"{where}.losses: they need different numbers of logits ({pairs})")
    return next(iter(widths), num_class)
