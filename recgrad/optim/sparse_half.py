"""The sparse half of an update, as the update step sees it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from google.protobuf.message import Message
from torch.optim import Optimizer

from recgrad.optim.clipping import ClippedSparse
from recgrad.optim.part import OptimizerPart, check_momentum
from recgrad.optim.schedules import build_schedules


@runtime_checkable
class SparseHalf(ClippedSparse, Protocol):
    """What the update needs of the optimizer of the embedding tables."""

    param_groups: list[dict[str, Any]]

    def unscale_(self, factor: float) -> bool:
        """Multiplies the gradients by a factor; says whether all were finite."""

    def step(self) -> None:
        """Updates the rows that have gradients."""

    def zero_grad(self) -> None:
        """Drops the gradients."""

    def state_dict(self) -> dict[str, Any]:
        """The state that is not kept with the tables' rows."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes back what `state_dict` gave."""


def build_sparse_parts(optimizer: Optimizer, config: Message, where: str) -> list[OptimizerPart]:
    """The parameter groups of the tables' optimizer with their schedules.

    A group goes by its `name`: the pattern of one of part_optimizers, or anything else for the
    main one. A part without a schedule follows the main one's.

    Args:
        optimizer: the optimizer, one parameter group to a pattern.
        config: a SparseOptimizer message.
        where: its path in the config, for errors.
    """
    message: Any = config
    shared, *schedules = build_schedules(message, where=where)
    sections = {
        section.regex_pattern: (section, f"{where}.part_optimizers[{i}]", schedule)
        for i, (section, schedule) in enumerate(zip(message.part_optimizers, schedules, strict=True))
    }
    parts = []
    for position, group in enumerate(optimizer.param_groups):
        pattern = group.get("name")
        name = f"sparse.{pattern}" if pattern in sections else "sparse"
        own, place, schedule = sections.get(pattern, (message, where, shared))
        part = OptimizerPart(name, optimizer, schedule, groups=[position])
        check_momentum(part, own, place)
        parts.append(part)
    return parts
