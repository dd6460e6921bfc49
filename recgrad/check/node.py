"""A message of the config and its path."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Node:
    """A message that the config sets, and its path."""

    path: str
    message: Any

    @property
    def kind(self) -> str:
        """The name of the message's type."""
        return str(self.message.DESCRIPTOR.name)

    def at(self, field: str) -> str:
        """The path of one of its fields."""
        return f"{self.path}.{field}" if self.path else field
