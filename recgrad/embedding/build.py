"""Building the sparse optimizer that a config asks for."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from google.protobuf.message import Message

from recgrad.config.messages import chosen, to_kwargs
from recgrad.errors import ConfigError, Problem
from recgrad.optim.sparse.optimizer import SPARSE_OPTIMIZERS, Combined, SparseOptimizer
from recgrad.registry import import_object

_WHERE = "train_config.sparse_optimizer"


def build_sparse_optimizer(engine: Any, config: Message) -> SparseOptimizer:
    """The optimizer of a `SparseOptimizer` message over the engine's tables.

    Each of `part_optimizers` takes the tables whose whole name its pattern matches and that no
    earlier one took; the main optimizer takes the rest. param_groups are in that order, main
    first, and carry the pattern (or "main") as `name`.

    Raises:
        ConfigError: a pattern that matches no table, or an optimizer that refuses its settings.
    """
    parts = list(getattr(config, "part_optimizers", ()))
    main, *others = _assign(engine, [part.regex_pattern for part in parts])
    problems: list[Problem] = []
    members = [
        _build(config, main, _WHERE, problems),
        *(
            _build(part, tables, f"{_WHERE}.part_optimizers[{i}]", problems, part.regex_pattern)
            for i, (part, tables) in enumerate(zip(parts, others, strict=True))
        ),
    ]
    if problems:
        raise ConfigError(problems)
    built = [member for member in members if member is not None]
    return built[0] if len(built) == 1 else Combined(built)


def _assign(engine: Any, patterns: Sequence[str]) -> list[list[Any]]:
    """The tables of the main optimizer, then those of each pattern."""
    left = dict(engine.tables)
    parts: list[list[Any]] = []
    problems: list[Problem] = []
    for i, pattern in enumerate(patterns):
        where = f"{_WHERE}.part_optimizers[{i}].regex_pattern"
        try:
            matching = [name for name in engine.tables if re.fullmatch(pattern, name)]
        except re.error as error:
            problems.append(Problem(where, f"'{pattern}' is not a regular expression ({error})"))
            continue
        if not matching:
            problems.append(Problem(where, f"'{pattern}' matches no table{_nearest(pattern, engine)}"))
        elif not any(name in left for name in matching):
            problems.append(Problem(where, f"'{pattern}' matches only tables that earlier patterns take"))
        parts.append([left.pop(name) for name in matching if name in left])
    if problems:
        raise ConfigError(problems)
    return [list(left.values()), *parts]


def _nearest(pattern: str, engine: Any) -> str:
    plain = re.sub(r"[^\w]+", "", pattern)
    names = get_close_matches(plain, list(engine.tables), n=3, cutoff=0.3) or list(engine.tables)[:3]
    return f"; the nearest are {', '.join(repr(name) for name in names)}" if names else ""


def _build(
    config: Any, tables: Sequence[Any], where: str, problems: list[Problem], name: str = "main"
) -> SparseOptimizer | None:
    """One optimizer over some tables; what it refuses is added to `problems`."""
    choice = chosen(config, "optimizer")
    if choice is None:
        problems.append(
            Problem(where, "no optimizer is set; add one, such as adagrad_optimizer { lr: 0.05 }")
        )
        return None
    kind_name, message = choice
    if kind_name == "custom_optimizer":
        kwargs = to_kwargs(message)
        kind = import_object(kwargs["class_path"])
        kwargs = dict(kwargs.get("params", {}))
        if not (isinstance(kind, type) and issubclass(kind, SparseOptimizer)):
            problems.append(Problem(f"{where}.custom_optimizer", f"{kind!r} is not a SparseOptimizer class"))
            return None
    else:
        kind, kwargs = SPARSE_OPTIMIZERS[kind_name], to_kwargs(message)
    try:
        built = kind([{"params": list(tables), "name": name}], **kwargs)
    except (ValueError, TypeError) as error:
        problems.append(Problem(f"{where}.{kind_name}", str(error)))
        return None
    return built
