"""Finding the fields and items of a message that a path names."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from recgrad.config.edit_path import Append, Condition, Index, Key, Slice, Step
from recgrad.config.fill import is_map, join, other_member
from recgrad.config.values import NUMERIC, Field, UnfitError, convert, unknown_field, wanted
from recgrad.errors import ConfigError, nearest

MAX_VISITS = 500_000

_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
}


class EditError(ValueError):
    """An edit that cannot be made; the text is the rest of an error message."""


@dataclass(slots=True)
class Place:
    """A field of a message, or one item of a list or map field.

    Attributes:
        message: what holds the field.
        field: the field.
        path: where it is in the config.
        item: the number or key of the item; None for the whole field.
    """

    message: Message
    field: Field
    path: str
    item: Any = None

    @property
    def value(self) -> Any:
        """What is there."""
        value = getattr(self.message, self.field.name)
        return value if self.item is None else value[self.item]

    @property
    def is_map(self) -> bool:
        """Whether the field is a map."""
        return is_map(self.field)


class Finder:
    """Finds places; counts those it looks at, so that no set of paths takes long."""

    def __init__(self) -> None:
        self.visits = 0

    def visit(self) -> None:
        """Count one place."""
        self.visits += 1
        if self.visits > MAX_VISITS:
            raise ConfigError(f"edits: they look at more than {MAX_VISITS} places; edit the file instead")

    def parents(self, root: Message, steps: Iterable[Step]) -> tuple[list[tuple[Message, str]], bool]:
        """The messages that steps lead to, with their paths, and whether a step could mean many."""
        found: list[tuple[Message, str]] = [(root, "")]
        many = False
        for step in steps:
            if isinstance(step.selector, Append):
                raise EditError("'[+]' belongs at the end of a path")
            places = self.places(found, step, many)
            many = many or isinstance(step.selector, (Slice, Condition))
            found = [(_message_at(place), place.path) for place in places]
        return found, many

    def places(self, parents: list[tuple[Message, str]], step: Step, many: bool) -> list[Place]:
        """The places that a step leads to.

        When an earlier step could mean many items, those that hold another member of a
        oneof than this step names are passed over; otherwise the named member replaces it.
        """
        found: list[Place] = []
        for message, path in parents:
            self.visit()
            field = find_field(message, step.name, path)
            if many and other_member(message, field) is not None:
                continue
            place = Place(message, field, join(path, field.name))
            if step.selector is None:
                found.append(place)
            elif not field.is_repeated:
                raise EditError(f"{place.path} is not a list")
            elif place.is_map:
                found.append(_entry(place, step))
            else:
                found.extend(Place(message, field, f"{place.path}[{i}]", i) for i in self._items(place, step))
        if not found:
            raise EditError(f"'{step.name}' matches nothing")
        return found

    def _items(self, place: Place, step: Step) -> Iterable[int]:
        """The numbers of the items that a selector names."""
        count = len(place.value)
        if isinstance(step.selector, Index):
            number = step.selector.number
            if not -count <= number < count:
                raise EditError(f"{place.path} has {count} items, so no [{number}]")
            return [number % count]
        if isinstance(step.selector, Slice):
            return range(count)[step.selector.start : step.selector.stop]
        if isinstance(step.selector, Condition):
            condition = step.selector
            values: dict[Field, Any] = {}
            meeting = [i for i, item in enumerate(place.value) if self._meets(place, item, condition, values)]
            return meeting or _nothing_meets(place, condition)
        text = step.selector.text if isinstance(step.selector, Key) else "+"
        raise EditError(f"{place.path}[{text}] is no number, slice or condition")

    def _meets(self, place: Place, item: Any, condition: Condition, values: dict[Field, Any]) -> bool:
        """Whether an item meets a condition; `values` keeps the condition's value in each field's type."""
        self.visit()
        if place.field.message_type is None:
            raise EditError(f"the items of {place.path} have no fields to compare")
        found = _look_up(item, condition.path)
        if found is None:
            return False
        field, value = found
        if field not in values:
            values[field] = _comparable(field, condition)
        return bool(_COMPARE[condition.operator](value, values[field]))


def find_field(message: Message, name: str, path: str) -> Field:
    """A field by name; an unknown one is an error with the nearest name."""
    described: Any = message.DESCRIPTOR
    field = described.fields_by_name.get(name)
    if field is None:
        where = f"{path}: " if path else ""
        raise EditError(where + unknown_field(described, name))
    return field


def _message_at(place: Place) -> Message:
    """The message at a place, set if it was not."""
    if place.field.message_type is None:
        raise EditError(f"{place.path} holds {wanted(place.field)}, which has no fields")
    if place.field.is_repeated and place.item is None:
        raise EditError(f"{place.path} is a {'map' if place.is_map else 'list'}; say which items in brackets")
    if place.is_map and place.field.message_type.fields_by_name["value"].message_type is None:
        raise EditError(f"the values of {place.path} have no fields")
    value: Message = place.value
    if not place.field.is_repeated:
        value.SetInParent()
    return value


def _entry(place: Place, step: Step) -> Place:
    """An entry of a map, which need not be there yet."""
    if not isinstance(step.selector, (Key, Index)):
        raise EditError(f"{place.path} is a map; name one key in the brackets")
    text = step.selector.text if isinstance(step.selector, Key) else str(step.selector.number)
    try:
        key = convert(place.field.message_type.fields_by_name["key"], text)
    except UnfitError as error:
        raise EditError(f"key of {place.path}: {error}") from None
    return Place(place.message, place.field, place.path, key)


def _chosen_members(message: Any) -> Iterator[Any]:
    """The messages that the oneofs of a message hold."""
    for oneof in message.DESCRIPTOR.oneofs:
        name = message.WhichOneof(oneof.name)
        if name is not None and message.DESCRIPTOR.fields_by_name[name].message_type is not None:
            yield getattr(message, name)


def _look_up(message: Any, names: tuple[str, ...]) -> tuple[Field, Any] | None:
    """The field that a condition names and its value, or None when the item has no such value.

    A name is looked for in the message and then in the members that its oneofs hold. A field
    that is not set counts with its default, if it has one.
    """
    for i, name in enumerate(names):
        holder, field = message, message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            holder = next((m for m in _chosen_members(message) if name in m.DESCRIPTOR.fields_by_name), None)
            if holder is None:
                return None
            field = holder.DESCRIPTOR.fields_by_name[name]
        last = i == len(names) - 1
        if last and field.has_presence and not holder.HasField(name) and not field.has_default_value:
            return None
        message = getattr(holder, name)
        if last:
            return field, message
        if field.is_repeated or field.message_type is None or not holder.HasField(name):
            return None
    return None


def _comparable(field: Field, condition: Condition) -> Any:
    """A condition's value as the field would keep it: a 32-bit float does not hold 0.1 exactly."""
    name = ".".join(condition.path)
    if field.message_type is not None or field.is_repeated:
        raise EditError(f"'{name}' is not one value that can be compared")
    if condition.operator != "=" and field.type not in NUMERIC:
        raise EditError(f"'{name}' is not a number, so it can only be compared by '='")
    try:
        value = convert(field, condition.value)
    except UnfitError as error:
        raise EditError(f"'{name}' cannot be compared: {error}") from None
    holder = field.containing_type._concrete_class()
    setattr(holder, field.name, value)
    return getattr(holder, field.name)


def _nothing_meets(place: Place, condition: Condition) -> list[int]:
    """Raise for a condition that no item meets, with the nearest value or field name."""
    name = ".".join(condition.path)
    found = [_look_up(item, condition.path) for item in place.value]
    values = dict.fromkeys(str(pair[1]) for pair in found if pair is not None and isinstance(pair[1], str))
    if not any(pair is not None for pair in found):
        names: set[str] = set()
        for item in list(place.value)[:100]:
            for holder in (item, *_chosen_members(item)):
                names.update(holder.DESCRIPTOR.fields_by_name)
        near = nearest(name, sorted(names - {name}))
        raise EditError(f"no item of {place.path} has a value '{name}'{near}")
    text = f"[{name}{condition.operator}{condition.value}]"
    raise EditError(f"no item of {place.path} meets {text}{nearest(condition.value, values)}")
