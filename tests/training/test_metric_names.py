"""Metrics know the names that evaluation gives to their values; the check asks them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from recgrad.config.proto.metric_pb2 import MetricConfig, TrainMetricConfig
from recgrad.metrics import build_metric, build_train_metric
from recgrad.training.task import _values


def every_metric(message_type: Any) -> Iterator[Any]:
    """Each metric of the oneof as it is, and with another k where it has one."""
    for field in message_type.DESCRIPTOR.oneofs_by_name["metric"].fields:
        if field.message_type.name == "CustomComponent":
            continue
        for top_k in (None, 7):
            config = message_type()
            message = getattr(config, field.name)
            message.SetInParent()
            names = message.DESCRIPTOR.fields_by_name
            if "grouping_key" in names and message_type is MetricConfig:
                message.grouping_key = "user"
            if top_k is not None and ("top_k" not in names or field.name == "accuracy"):
                continue  # accuracy's is for more classes than two, and not in its name
            if top_k is not None:
                message.top_k = top_k
            yield pytest.param(config, id=f"{message_type.DESCRIPTOR.name}-{field.name}-{top_k}")


def built(config: Any) -> Any:
    classes = 3 if config.WhichOneof("metric") == "multiclass_auc" else 1
    build: Any = build_metric if isinstance(config, MetricConfig) else build_train_metric
    return build(config, num_class=classes)


@pytest.mark.parametrize("config", [*every_metric(MetricConfig), *every_metric(TrainMetricConfig)])
def test_names_are_those_of_the_metric(config: Any) -> None:
    metric = built(config)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of no rows, values are nan
        values = _values(iter([(metric.display_name, metric)]))
    assert list(values) == metric.value_names


def test_each_class_has_a_name() -> None:
    config = MetricConfig()
    config.multiclass_auc.average = "none"
    assert built(config).value_names == [f"class_{i}_multiclass_auc" for i in range(3)]


@pytest.mark.parametrize(("name", "expected"), [("recall_at_k", "recall@7"), ("accuracy", "accuracy")])
def test_places_are_in_the_name_of_rankings_alone(name: str, expected: str) -> None:
    config = MetricConfig()
    getattr(config, name).top_k = 7
    assert build_metric(config, num_class=9).display_name == expected
