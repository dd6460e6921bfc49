"""The sparse half of an update, as the update step sees it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from google.protobuf.message import Message
from torch.optim import Optimizer

from recgrad.config.messages import chosen
from recgrad.optim.clipping import ClippedSparse
from recgrad.optim.part import OptimizerPart
from recgrad.optim.schedules import build_schedule


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
    shared = build_schedule(message, where=where)
    schedules = {}
    for i, part in enumerate(message.part_optimizers):
        own = chosen(part, "learning_rate") is not None
        place = f"{where}.part_optimizers[{i}]"
        schedules[part.regex_pattern] = build_schedule(part, where=place) if own else shared
    parts = []
    for position, group in enumerate(optimizer.param_groups):
        pattern = group.get("name")
        name = f"sparse.{pattern}" if pattern in schedules else "sparse"
        parts.append(OptimizerPart(name, optimizer, schedules.get(pattern, shared), groups=[position]))
    return parts
