"""Which columns a config's model learns from: labels, sample weights, keys."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from google.protobuf.message import Message

from recgrad.config.class_paths import names_class
from recgrad.config.messages import struct_to_dict
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.data.targets import Label, Targets
from recgrad.losses import loss_class
from recgrad.models.base import MODELS

_KEYS = ("grouping_key", "session_name")


def find_targets(config: PipelineConfig) -> Targets:
    """The target columns that a config names, in `data_config` or anywhere in the model."""
    data, model = config.data_config, config.model_config
    classes: dict[str, int] = dict.fromkeys(data.label_fields, 0)
    weights = dict.fromkeys(data.sample_weight_fields)
    keys: dict[str, None] = {}
    if model.losses and data.label_fields:
        classes[data.label_fields[0]] = _classes(model.losses, model.num_class)
    for message in _walk(model):
        for label in _text(message, "label_name"):
            classes[label] = _task_classes(message) or classes.get(label, 0)
        for indicator in _text(message, "task_space_indicator_label"):
            classes.setdefault(indicator, 0)
        weights.update(dict.fromkeys(_text(message, "sample_weight_name")))
        keys.update(dict.fromkeys([key for name in _KEYS for key in _text(message, name)]))
        keys.update(dict.fromkeys(_custom_keys(message)))
    positive = {item.label_field: tuple(item.values) for item in data.positive_labels}
    named = {item.label_field: tuple(item.values) for item in data.label_classes}
    chosen = str(model.WhichOneof("model"))
    listed = chosen in MODELS and MODELS[chosen].lists
    labels = tuple(
        Label(name, count, positive.get(name, ()), listed, named.get(name, ()))
        for name, count in classes.items()
    )
    return Targets(labels, tuple(weights), tuple(keys))


def _task_classes(task: Any) -> int:
    """As `_classes` for a task's tower; a label that is a bit mask may be any number."""
    if "task_bitmask" in task.DESCRIPTOR.fields_by_name and task.HasField("task_bitmask"):
        return 0
    return _classes(task.losses, task.num_class)


def _classes(losses: Iterable[Any], num_class: int) -> int:
    """The classes that labels must be of: 2 when one of the losses is binary; 0 when any number will do."""
    wanted = {loss_class(message).labels for message in losses}
    if "binary" in wanted:
        return 2
    return num_class if "classes" in wanted and num_class > 1 else 0


def _text(message: Message, name: str) -> list[str]:
    """The value of an optional string field, when the message has it and it is set."""
    if name not in message.DESCRIPTOR.fields_by_name or not getattr(message, name):
        return []
    return [getattr(message, name)]


def _custom_keys(message: Message) -> list[str]:
    """The columns of keys that the params of the user's own metric or loss name."""
    if not names_class(message.DESCRIPTOR):
        return []
    custom: Any = message
    params = struct_to_dict(custom.params)
    return [key for name in _KEYS if (key := params.get(name)) and isinstance(key, str)]


def _walk(message: Message) -> Iterator[Message]:
    """A message and all messages inside it."""
    yield message
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None or descriptor.message_type.GetOptions().map_entry:
            continue
        for item in value if descriptor.is_repeated else [value]:
            yield from _walk(item)
