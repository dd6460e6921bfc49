"""Who gets which optimizer: parameters to optimizers by pattern, role and config."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message
from torch import Tensor
from torch.optim import Optimizer

from recgrad.config.messages import chosen, to_kwargs
from recgrad.config.patterns import assign_by_pattern
from recgrad.errors import ConfigError, Problem, RecgradError
from recgrad.limits import required_of
from recgrad.optim.dense import DENSE_OPTIMIZERS
from recgrad.optim.dense.optimizer import Factory
from recgrad.optim.part import OptimizerPart, averages_weights, check_momentum
from recgrad.optim.roles import NOT_ADAPTED, NOT_DECAYED, Role, guess_roles
from recgrad.optim.schedules import Schedule, build_schedules

FALLBACK = "fallback_"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Section:
    """The main optimizer, or one of part_optimizers, and the parameters that are its own."""

    name: str
    where: str
    config: Any
    schedule: Schedule
    parameters: list[tuple[str, Tensor]]


def build_dense_optimizers(
    named_parameters: Iterable[tuple[str, Tensor]],
    config: Message,
    *,
    roles: Mapping[str, Role] | None = None,
    where: str = "train_config.dense_optimizer",
) -> list[OptimizerPart]:
    """The optimizers of the dense parameters, and logs who got what: a line, and a table at the level DEBUG.

    The first of part_optimizers whose pattern matches a parameter's whole name gets it, the
    rest goes to the main optimizer; a part without a schedule follows the main one's. Muon and
    SOAP keep the hidden matrices and leave the rest to AdamW, in a part of its own.

    Args:
        named_parameters: the model's dense parameters; those without requires_grad are left out.
        config: a DenseOptimizer message.
        roles: the parameters' roles (`parameter_roles(model)`); guessed from shape and order
            where it says nothing.
        where: the message's path in the config, for errors.
    """
    named = [(name, p) for name, p in named_parameters if p.requires_grad]
    roles = guess_roles(named, roles)
    parts = [
        part
        for section in _sections(named, config, where)
        if section.parameters
        for part in _build_section(section, roles)
    ]
    log.info("dense: %s", "; ".join(map(describe_part, parts)))
    log.debug("dense parameters:\n%s", assignment_table(parts, roles))
    return parts


def _sections(named: list[tuple[str, Tensor]], config: Any, where: str) -> list[_Section]:
    parts = list(config.part_optimizers)
    owners = assign_by_pattern(
        [name for name, _ in named],
        [part.regex_pattern for part in parts],
        f"{where}.part_optimizers",
        "dense parameter",
    )
    schedules = build_schedules(config, where=where)

    def owned(owner: int) -> list[tuple[str, Tensor]]:
        return [item for item, o in zip(named, owners) if o == owner]

    sections = [_Section("dense", where, config, schedules[0], owned(-1))]
    for i, (part, schedule) in enumerate(zip(parts, schedules[1:], strict=True)):
        place = f"{where}.part_optimizers[{i}]"
        sections.append(_Section(f"dense.{part.regex_pattern}", place, part, schedule, owned(i)))
    return sections


def _build_section(section: _Section, roles: Mapping[str, Role]) -> list[OptimizerPart]:
    choice = chosen(section.config, "optimizer")
    if choice is None:
        raise ConfigError([Problem(section.where, "has no optimizer; add one, such as adam_optimizer { }")])
    kind, message = choice
    where = f"{section.where}.{kind}"
    factory = DENSE_OPTIMIZERS[kind]
    options = config_options(message)
    other = getattr(factory, "fallback", None)
    if other is None:
        return [_build_part(section, section.name, section.parameters, roles, factory, options, where)]

    own = {key: value for key, value in options.items() if not key.startswith(FALLBACK)}
    fallback = {key.removeprefix(FALLBACK): v for key, v in options.items() if key.startswith(FALLBACK)}
    hidden = [(name, p) for name, p in section.parameters if roles[name] is Role.HIDDEN]
    rest = [(name, p) for name, p in section.parameters if roles[name] is not Role.HIDDEN]
    if not hidden:
        names = ", ".join(name for name, _ in rest[:5])
        raise ConfigError(
            [
                Problem(
                    where, f"there is no hidden matrix among its {len(rest)} parameters ({names}); use AdamW"
                )
            ]
        )
    parts = [_build_part(section, section.name, hidden, roles, factory, own, where)]
    if rest:
        name = f"{section.name}.fallback"
        parts.append(_build_part(section, name, rest, roles, other, fallback, where, reference=own.get("lr")))
    return parts


def config_options(message: Message) -> dict[str, Any]:
    """A message's fields as an optimizer's arguments; a `fused` that is not set is left to the optimizer."""
    options = to_kwargs(message)
    if "fused" in options and not message.HasField("fused"):
        del options["fused"]
    return options


def _build_part(
    section: _Section,
    name: str,
    parameters: list[tuple[str, Tensor]],
    roles: Mapping[str, Role],
    factory: Factory,
    options: dict[str, Any],
    where: str,
    reference: float | None = None,
) -> OptimizerPart:
    exclude = bool(section.config.exclude_bias_and_norm)
    groups = _group(parameters, roles, factory, exclude)
    names = [group.pop("names") for group in groups]
    optimizer = _make(factory, groups, options, where)
    if exclude and "weight_decay" not in optimizer.defaults:
        raise ConfigError(
            [
                Problem(
                    f"{section.where}.exclude_bias_and_norm",
                    f"{type(optimizer).__name__} has no weight_decay; leave it out",
                )
            ]
        )
    part = OptimizerPart(name, optimizer, section.schedule, reference=reference, names=names)
    check_momentum(part, section.config, section.where)
    return part


def _make(factory: Factory, groups: list[dict[str, Any]], options: dict[str, Any], where: str) -> Optimizer:
    missing = set(required_of(factory)) - set(options)
    if missing:
        raise ConfigError(Problem(f"{where}.{field}", "is not set") for field in sorted(missing))
    try:
        optimizer = factory(groups, **options)
    except (ValueError, TypeError, RecgradError) as error:
        raise ConfigError([Problem(where, str(error))]) from error
    if averages_weights(optimizer):
        optimizer.train()  # type: ignore[attr-defined]
    return optimizer


def _group(
    parameters: list[tuple[str, Tensor]], roles: Mapping[str, Role], factory: Factory, exclude: bool
) -> list[dict[str, Any]]:
    """Parameter groups: one for each set of options that differ from the optimizer's own."""
    excluded: dict[str, Any] = getattr(factory, "excluded_options", {})
    groups: dict[tuple[tuple[str, Any], ...], dict[str, Any]] = {}
    for name, parameter in parameters:
        options: dict[str, Any] = {}
        if exclude and roles[name] in NOT_DECAYED:
            options["weight_decay"] = 0.0
        if roles[name] in NOT_ADAPTED:
            options.update(excluded)
        key = tuple(sorted(options.items()))
        group = groups.setdefault(key, {"params": [], "names": [], **options})
        group["params"].append(parameter)
        group["names"].append(name)
    return list(groups.values())


def describe_part(part: OptimizerPart) -> str:
    """`Adam, lr 0.003, LinearDecay, 8 parameters of 38,369 weights`, with its pattern if it has one."""
    parameters = [parameter for group in part.param_groups for parameter in group["params"]]
    pattern = part.name.partition(".")[2]
    rates = " and ".join(dict.fromkeys(f"{rate:g}" for rate in part.base_rates))
    count = f"{len(parameters)} parameter{'s' if len(parameters) != 1 else ''}"
    return (
        f"{f'{pattern}: ' if pattern else ''}{type(part.optimizer).__name__}, lr {rates}, "
        f"{type(part.schedule).__name__}, {count} of {sum(p.numel() for p in parameters):,} weights"
    )


def assignment_table(parts: Sequence[OptimizerPart], roles: Mapping[str, Role]) -> str:
    """The parameters under the optimizer, rate and weight decay that they have: name, shape and role."""
    titles, sections = [], []
    for part in parts:
        for group, names, base in zip(part.param_groups, part.names, part.base_rates):
            kind, schedule = type(part.optimizer).__name__, type(part.schedule).__name__
            decay = group.get("weight_decay", 0)
            titles.append(f"{part.name}: {kind}, lr {base:g}, weight decay {decay:g}, {schedule}")
            shapes = ["×".join(map(str, p.shape)) or "1" for p in group["params"]]
            sections.append([(name, shape, roles[name].value) for name, shape in zip(names, shapes)])
    widths = [max(map(len, column)) for column in zip(*(row for rows in sections for row in rows))]
    lines = []
    for title, rows in zip(titles, sections):
        lines.append(title)
        lines += ["  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
    return "\n".join(lines)
