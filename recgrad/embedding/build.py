"""The sparse optimizers that a config asks for, and which table gets which."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from google.protobuf.message import Message

from recgrad.config.messages import chosen, to_kwargs
from recgrad.config.patterns import assign_by_pattern
from recgrad.errors import ConfigError, Problem
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS, Combined, SparseOptimizer
from recgrad.optim.sparse.tables import SparseEngine, SparseTable

_WHERE = "train_config.sparse_optimizer"


@dataclass(frozen=True)
class TableOptimizer:
    """The optimizer that a table gets.

    Attributes:
        kind: its class.
        settings: all hyperparameters by name, checked.
        field: its config name, such as `adagrad_optimizer`.
        group: the name of its param group: a pattern of part_optimizers, or "main".
    """

    kind: type[SparseOptimizer]
    settings: dict[str, Any]
    field: str
    group: str = "main"


@dataclass(frozen=True)
class _Section:
    """One optimizer of the config and the names of its tables."""

    kind: type[SparseOptimizer]
    arguments: dict[str, Any]
    field: str
    group: str
    where: str
    tables: tuple[str, ...]

    def build(self, tables: Sequence[SparseTable]) -> SparseOptimizer:
        try:
            built: Any = self.kind
            optimizer: SparseOptimizer = built(
                [{"params": list(tables), "name": self.group}], **self.arguments
            )
        except (ValueError, TypeError) as error:
            raise ConfigError([Problem(f"{self.where}.{self.field}", str(error))]) from error
        return optimizer


def build_sparse_optimizer(engine: SparseEngine, config: Message) -> SparseOptimizer:
    """The optimizer of a `SparseOptimizer` message over the engine's tables.

    Each of `part_optimizers` takes the tables whose whole name its pattern matches and that no
    earlier one took; the main optimizer takes the rest. param_groups are in that order, main
    first, and carry the pattern (or "main") as `name`.

    Raises:
        ConfigError: a pattern that matches no table, or an optimizer that refuses its settings.
    """
    sections = _sections(config, list(engine.tables))
    built: list[SparseOptimizer] = _all(
        partial(section.build, [engine.tables[name] for name in section.tables]) for section in sections
    )
    return built[0] if len(built) == 1 else Combined(built)


def optimizers_by_table(config: Message, tables: Sequence[str]) -> dict[str, TableOptimizer]:
    """The optimizer that each of these tables gets from a `SparseOptimizer` message.

    Raises:
        ConfigError: as `build_sparse_optimizer`, but for what depends on an engine.
    """
    sections = _sections(config, tables)
    built: list[SparseOptimizer] = _all(partial(section.build, []) for section in sections)
    return {
        name: TableOptimizer(section.kind, dict(optimizer.param_groups[0]), section.field, section.group)
        for section, optimizer in zip(sections, built, strict=True)
        for name in section.tables
    }


def _sections(config: Any, tables: Sequence[str]) -> list[_Section]:
    """The main optimizer and the parts, each with its tables."""
    parts = list(config.part_optimizers)
    patterns = [part.regex_pattern for part in parts]
    owners = assign_by_pattern(tables, patterns, f"{_WHERE}.part_optimizers", "table")
    owned = [[name for name, o in zip(tables, owners) if o == owner] for owner in range(-1, len(parts))]
    places = [(config, _WHERE, "main")]
    places += [(part, f"{_WHERE}.part_optimizers[{i}]", part.regex_pattern) for i, part in enumerate(parts)]
    return _all(partial(_section, *place, own) for place, own in zip(places, owned, strict=True))


def _section(config: Any, where: str, group: str, tables: Sequence[str]) -> _Section:
    choice = chosen(config, "optimizer")
    if choice is None:
        raise ConfigError(
            [Problem(where, "no optimizer is set; add one, such as adagrad_optimizer { lr: 0.05 }")]
        )
    field, message = choice
    arguments = to_kwargs(message)
    if field == "custom_optimizer":
        class_path = arguments["class_path"]
        kind = SPARSE_OPTIMIZERS.resolve(class_path)
        arguments = dict(arguments.get("params", {}))
        if not issubclass(kind, SparseOptimizer):
            raise ConfigError(
                [Problem(f"{where}.custom_optimizer", f"{class_path} is not a SparseOptimizer class")]
            )
    else:
        kind = SPARSE_OPTIMIZERS[field]
    return _Section(kind, arguments, field, group, where, tuple(tables))


def _all(makers: Iterable[Callable[[], Any]]) -> list[Any]:
    """What all of these make; their problems together, if there are some."""
    made: list[Any] = []
    problems: list[Problem] = []
    for make in makers:
        try:
            made.append(make())
        except ConfigError as error:
            problems += error.problems
    if problems:
        raise ConfigError(problems)
    return made
