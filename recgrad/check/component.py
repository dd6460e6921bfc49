"""A component that a config chooses, and what its class says of it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from recgrad.check.capabilities import REGISTRIES
from recgrad.check.node import Node
from recgrad.check.unsupported import KINDS
from recgrad.config.class_paths import names_class
from recgrad.config.messages import struct_to_dict
from recgrad.models.build import SETTINGS, plain
from recgrad.optim.groups import config_options

ONEOFS = {
    message: [(oneof, kind) for (other, oneof), kind in KINDS.items() if other == message]
    for message, _ in KINDS
}
"""The oneofs of a message that choose components, and the kinds of those."""


@dataclass(frozen=True)
class Component:
    """A component that the config chooses.

    Attributes:
        kind: as in `REGISTRIES`.
        name: what the config calls it.
        node: its message.
        holder: the message that chooses it.
        cls: its class or function; None when there is none, or its code may not be imported.
    """

    kind: str
    name: str
    node: Node
    holder: Node
    cls: Any

    @property
    def own(self) -> bool:
        """Whether it is of the user's own code, named by class_path."""
        return names_class(self.node.message.DESCRIPTOR)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What its class is given."""
        message: Any = self.node.message
        if self.own:
            return struct_to_dict(message.params)
        if self.kind == "model":
            return {SETTINGS.get(field, field): value for field, value in plain(message).items()}
        return config_options(message) if self.kind == "dense_optimizer" else plain(message)

    def at(self, setting: str) -> str:
        """The path of a setting."""
        fields = {name: field for field, name in SETTINGS.items()} if self.kind == "model" else {}
        name, bracket, rest = setting.partition("[")
        field = fields.get(name, name)
        if field not in self.node.message.DESCRIPTOR.fields_by_name:
            field = name
        return self.node.at(f"{'params.' if self.own else ''}{field}{bracket}{rest}")

    def trait(self, name: str, default: Any = None) -> Any:
        """What its class says of itself."""
        return getattr(self.cls, name, default)


def build_component(holder: Node, oneof: str, kind: str, node: Node, custom_code: bool) -> Component:
    """The component that a oneof chooses."""
    name = str(holder.message.WhichOneof(oneof))
    return Component(kind, name, node, holder, _class_of(kind, name, node, custom_code))


def _class_of(kind: str, name: str, node: Node, custom_code: bool) -> Any:
    registry = REGISTRIES[kind]
    if not names_class(node.message.DESCRIPTOR):
        return registry.get(name)
    if not custom_code or not node.message.class_path:
        return None
    try:
        return registry.resolve(node.message.class_path)
    except Exception:  # building it says what is wrong
        return None
