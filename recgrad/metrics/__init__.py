"""Metrics by config name, and as torchmetrics' metrics that work in anyone's loop.

`build_metric(config)` makes an evaluation metric, `build_train_metric(config)` a decayed
one for the training log; `METRICS` and `TRAIN_METRICS` list them. The classes that are
importable from here (`from recgrad.metrics import AUC, GroupedAUC`) are `torchmetrics.Metric`s;
those that a run builds compute the same, and spare it the import of torchmetrics.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from recgrad.config.messages import chosen, to_kwargs
from recgrad.errors import ConfigError, Problem
from recgrad.lazy import lazy_names
from recgrad.metrics._public import HOMES
from recgrad.registry import Registry

if TYPE_CHECKING:
    from recgrad.config.proto.metric_pb2 import MetricConfig, TrainMetricConfig
    from recgrad.metrics._public import *  # noqa: F403
    from recgrad.metrics.base import Metric, UndefinedMetricWarning
    from recgrad.metrics.decay import Decayed

METRICS: Registry[type[Metric]] = Registry("metric", "recgrad.metrics")
TRAIN_METRICS: Registry[type[Metric]] = Registry("train metric", "recgrad.metrics")

__all__ = [
    *HOMES,
    "Decayed",
    "METRICS",
    "TRAIN_METRICS",
    "UndefinedMetricWarning",
    "build_metric",
    "build_train_metric",
]


def _as_torchmetrics(found: Any) -> Any:
    """The metrics as `torchmetrics.Metric`s; what is none stays as it is."""
    from recgrad.metrics.base import Metric

    if isinstance(found, type) and issubclass(found, Metric):
        from recgrad.metrics._torch_metric import torch_metric

        return torch_metric(found)
    return found


if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        __all__,
        {
            **HOMES,
            "Decayed": "recgrad.metrics.decay",
            "UndefinedMetricWarning": "recgrad.metrics.base",
            # Their home is recgrad now; what was promised here stays importable.
            "Comparison": "recgrad.report.comparison",
            "compare": "recgrad.report.comparison",
        },
        _as_torchmetrics,
    )


def build_metric(config: MetricConfig, *, num_class: int = 1) -> Metric:
    """The metric that a MetricConfig names; `.config_name` is the name.

    Args:
        config: the message.
        num_class: classes of the task; 1 and 2 are both binary.
    """
    name, message = _choice(config, "metrics")
    if name == "custom_metric":
        return _custom(message)
    return _build("metrics", METRICS[name], name, to_kwargs(message), num_class)


def build_train_metric(config: TrainMetricConfig, *, num_class: int = 1) -> Metric:
    """The decayed metric that a TrainMetricConfig names; `.config_name` is the name."""
    from recgrad.metrics.decay import Decayed
    from recgrad.metrics.decay_auc import DecayAUC

    name, message = _choice(config, "train_metrics")
    decay = {key: value for key, value in to_kwargs(config).items() if key in ("decay_rate", "decay_step")}
    kwargs, cls = to_kwargs(message), TRAIN_METRICS[name]
    for setting in METRICS[name].keeps_rows_with:
        if kwargs.get(setting):
            raise ConfigError(
                [
                    Problem(
                        f"train_metrics.{name}",
                        f"{setting} is for evaluation, where all rows are kept; remove it here",
                    )
                ]
            )
    if issubclass(cls, DecayAUC):
        del kwargs["exact"]
        return _build("train_metrics", cls, name, kwargs | decay, num_class)
    try:
        measured = _build("train_metrics", cls, name, kwargs, num_class)
        metric = Decayed(measured, **decay)
    except ValueError as error:
        raise ConfigError(f"train_metrics.{name}: {error}") from error
    metric.config_name = name
    return metric


def _choice(config: MetricConfig | TrainMetricConfig, where: str) -> tuple[str, Any]:
    choice = chosen(config, "metric")
    if choice is None:
        raise ConfigError(f"{where}: no metric is set; name one, such as auc {{}}")
    name, message = choice
    return name, message


def class_problem(metric: Any, num_class: int) -> str | None:
    """Why a metric's class has no meaning for a task of so many classes, or None."""
    least, most = getattr(metric, "num_classes", (1, None))
    if least <= num_class and (most is None or num_class <= most):
        return None
    instead = f"; use {metric.instead}" if metric.instead else ""
    wanted = f"of at least {least}" if most is None else f"{least} or {most}"
    return f"needs num_class {wanted}, got {num_class}{instead}"


def _build(where: str, cls: type[Metric], name: str, kwargs: dict[str, Any], num_class: int) -> Metric:
    if (problem := class_problem(cls, num_class)) is not None:
        raise ConfigError([Problem(f"{where}.{name}", problem)])
    if "num_class" in inspect.signature(cls).parameters:
        kwargs = kwargs | {"num_class": num_class}
    try:
        metric = cls(**kwargs)
    except ValueError as error:
        raise ConfigError([Problem(f"{where}.{name}", str(error))]) from error
    metric.config_name = name
    return metric


def _custom(message: Any) -> Metric:
    import torchmetrics

    kwargs = to_kwargs(message)
    cls = METRICS.resolve(kwargs["class_path"])
    if not issubclass(cls, torchmetrics.Metric):
        raise ConfigError(f"custom_metric: {kwargs['class_path']} is not a subclass of torchmetrics.Metric")
    try:
        metric: Any = cls(**kwargs.get("params", {}))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"metrics.custom_metric {kwargs['class_path']}: {error}") from error
    metric.config_name = "custom_metric"
    for name, default in (("needs_key", False), ("display_name", cls.__name__)):
        if not hasattr(metric, name):
            setattr(metric, name, default)
    if metric.needs_key and not getattr(metric, "grouping_key", None):
        raise ConfigError(
            f"metrics.custom_metric {kwargs['class_path']}: needs a key but has no grouping_key; "
            "set the attribute to the name of the field"
        )
    built: Metric = metric
    return built
