"""The sparse half of an update, as the update step sees it."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from google.protobuf.message import Message
from torch.optim import Optimizer

from recgrad.config.messages import chosen
from recgrad.optim.clipping import ClippedSparse
from recgrad.optim.part import OptimizerPart, check_momentum
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
    schedules, sections = {}, {}
    for i, section in enumerate(message.part_optimizers):
        place = f"{where}.part_optimizers[{i}]"
        sections[section.regex_pattern] = (section, place)
        has_own = chosen(section, "learning_rate") is not None
        schedules[section.regex_pattern] = build_schedule(section, where=place) if has_own else shared
    parts = []
    for position, group in enumerate(optimizer.param_groups):
        pattern = group.get("name")
        name = f"sparse.{pattern}" if pattern in schedules else "sparse"
        part = OptimizerPart(name, optimizer, schedules.get(pattern, shared), groups=[position])
        own, place = sections.get(pattern, (message, where))
        check_momentum(part, own, place)
        parts.append(part)
    return parts
