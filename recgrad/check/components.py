"""Components that a config chooses: their classes, and the limits and rules that those have themselves.

What a setting may be stands in the signature of the class (`recgrad.limits`), what does not go together is
refused by its constructor; both are told here for all kinds alike, at the lines of the config.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch

from recgrad.check.component import Component
from recgrad.check.places import problems_of
from recgrad.check.rule import Context
from recgrad.config.messages import to_kwargs
from recgrad.limits import limits_of, required_of
from recgrad.losses import build_loss
from recgrad.metrics import build_metric, build_train_metric
from recgrad.metrics.decay import Decayed
from recgrad.nn.dense_embedding import AutoDis
from recgrad.nn.variational_dropout import VariationalDropout
from recgrad.optim.averaging import EMA
from recgrad.optim.clipping import GradientClipping
from recgrad.optim.groups import FALLBACK
from recgrad.optim.precision import LossScaler

# Messages of parts that there is one kind of, and the class that takes their fields.
_PARTS: dict[str, Any] = {
    "EMAConfig": EMA,
    "GradScaler": LossScaler,
    "GradClipping": GradientClipping,
    "TrainMetricConfig": Decayed,
    "VariationalDropout": VariationalDropout,
    "AutoDisEmbedding": AutoDis,
}


def check_components(context: Context) -> None:
    """Settings are within the limits that their class has, and its constructor takes them.

    What is built goes to `context.built`, where rules find it.
    """
    sound = []
    for component in context.components:
        if component.cls is not None and _check_limits(context, component):
            sound.append(component)
    for component in reversed(sound):  # what stands inside others first
        _try(context, component)
    for kind, cls in _PARTS.items():
        for node in context.of(kind):
            for field, what in _limit_problems(cls, to_kwargs(node.message)):
                context.problem(node.at(field), what)


def _check_limits(context: Context, component: Component) -> bool:
    """Report settings outside their limits; says whether there are none."""
    message, settings = component.node.message, component.settings
    fields = message.DESCRIPTOR.fields_by_name
    needed = [name for name, field in fields.items() if field.is_required and not field.has_default_value]
    if not all(map(message.HasField, needed)):
        return False  # the rule on required fields says so
    missing = [name for name in required_of(component.cls) if name in fields and name not in settings]
    wrong = list(_limit_problems(component.cls, settings))
    if fallback := component.trait("fallback"):
        own = {key.removeprefix(FALLBACK): v for key, v in settings.items() if key.startswith(FALLBACK)}
        wrong += [(FALLBACK + name, what) for name, what in _limit_problems(fallback, own)]
    wrong += _overruled(context, component)
    for name, what in [*((name, "is required") for name in missing), *wrong]:
        context.problem(component.at(name), what)
    return not missing and not wrong and all(map(_finite, settings.values()))


def _limit_problems(cls: Any, settings: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Settings outside their limits; those that are no finite numbers are left to the rule on numbers."""
    for name, limit in limits_of(cls).items():
        for place, rule, value in limit.parts(settings.get(name)):
            what = rule.problem(value) if _finite(value) else None
            if what is not None:
                yield name + place, what


def _overruled(context: Context, component: Component) -> list[tuple[str, str]]:
    """Settings that have no effect because of another beside them."""
    message = component.node.message
    fields = message.DESCRIPTOR.fields_by_name
    by, settings, harmless = next(
        (case for case in component.trait("overruled", ()) if component.settings.get(case.by)), ("", (), ())
    )
    what = f"has no effect with {by}; keep one"
    found = []
    for name in settings:
        if name not in fields or not message.HasField(name):
            continue
        if getattr(message, name) == fields[name].default_value:
            continue
        if name in harmless:
            context.hint(component.at(name), what)
        else:
            found.append((name, what))
    return found


def _finite(value: Any) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def _try(context: Context, component: Component) -> None:
    """Build what takes no memory, and report what its constructor refuses."""
    build = _TRIALS.get(component.kind)
    if build is None or component.own or context.is_broken(component.node.path):
        return
    try:
        context.built[component.node.path] = build(context, component)
    except Exception as error:
        report(context, error, component.node.path)


def report(context: Context, error: Exception, where: str) -> None:
    """Report what a constructor raised at the field that it names."""
    for problem in problems_of(error, where, context.config):
        context.problem(problem.where, problem.what)


def _metric(context: Context, component: Component, build: Callable[..., Any]) -> Any:
    task = context.node(component.holder.path.rpartition(".")[0])
    return build(component.holder.message, num_class=task.message.num_class)


def _dense_optimizer(context: Context, component: Component) -> Any:
    own = {key: v for key, v in component.settings.items() if not key.startswith(FALLBACK)}
    return component.cls([torch.nn.Parameter(torch.zeros(2, 2))], **own)


_TRIALS: dict[str, Callable[[Context, Component], Any]] = {
    "dense_optimizer": _dense_optimizer,
    "sparse_optimizer": lambda context, component: component.cls([], **component.settings),
    "schedule": lambda context, component: component.cls.from_config(component.node.message),
    "loss": lambda context, component: build_loss(component.holder.message),
    "metric": partial(_metric, build=build_metric),
    "train_metric": partial(_metric, build=build_train_metric),
}
