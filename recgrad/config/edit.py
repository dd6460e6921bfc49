"""Editing a config by paths, such as `{"feature_configs[0].raw_feature.boundaries": [1, 2]}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

from recgrad.config import fill
from recgrad.config.edit_path import Append, PathError, parse_path
from recgrad.config.json_source import load_json
from recgrad.config.legacy import PATH as FG_ENCODED
from recgrad.config.legacy import replace_fg_encoded
from recgrad.config.locations import Locations
from recgrad.config.places import EditError, Finder, Place, find_field
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.config.text_source import parse_text
from recgrad.config.values import show
from recgrad.errors import ConfigError, Problem

MAX_EDITS = 10_000
MAX_TEXT = 4 * 2**20
MAX_PROBLEMS = 20


def edit_config(
    config: PipelineConfig, edits: str | Mapping[str, Any], *, locations: Locations | None = None
) -> PipelineConfig:
    """A copy of the config with fields changed.

    Args:
        config: not changed.
        edits: values by path, or JSON text that says so; `recgrad.config.edit_path` says how
            paths are written. Edits are made in their order. A value is converted to the
            field's type; a message, list or map replaces the whole of it; None clears the
            field, or takes the items out.
        locations: forgets the lines of what is edited.

    Raises:
        ConfigError: paths that match nothing and values that do not fit, all at once.
    """
    pairs = _pairs(_as_mapping(edits))
    if len(pairs) > MAX_EDITS:
        raise ConfigError(f"edits: {len(pairs)} paths are more than {MAX_EDITS}; edit the file instead")
    edited = PipelineConfig()
    edited.CopyFrom(config)
    replace_fg_encoded(edited, Locations())
    editor = _Editor(edited)
    problems: list[Problem] = []
    for path, value in pairs:
        try:
            editor.edit(path, value)
        except (EditError, PathError) as error:
            what = str(error).removeprefix(f"{path}: ")
            problems.append(Problem(f"edit {show(path)}", what))
        if len(problems) >= MAX_PROBLEMS:
            problems.append(Problem("edits", "further problems are not shown"))
            break
    if problems:
        raise ConfigError(problems)
    # The last word on the replaced field is the edit's.
    if FG_ENCODED in editor.touched and "data_config.fg_mode" not in editor.touched:
        edited.data_config.ClearField("fg_mode")
    replace_fg_encoded(edited, Locations())
    if locations is not None:
        for touched in editor.touched:
            locations.forget(touched)
    return edited


def _as_mapping(edits: str | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(edits, Mapping):
        return edits
    if len(edits) > MAX_TEXT:
        raise ConfigError(f"edits: the JSON is longer than {MAX_TEXT >> 20} MB; edit the file instead")
    tree = load_json(edits, "edits")
    if not isinstance(tree, dict):
        raise ConfigError(f"edits: expected a JSON object of paths and values, got {show(tree)}")
    return tree


def _pairs(edits: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Edits one by one; `{"a;b": "1;2"}` is two of them."""
    pairs: list[tuple[str, Any]] = []
    for path, value in edits.items():
        paths, values = str(path).split(";"), str(value).split(";")
        if len(paths) > 1 and len(paths) == len(values) and isinstance(value, str):
            pairs.extend((one.strip(), other.strip()) for one, other in zip(paths, values))
        else:
            pairs.append((path, value))
    return pairs


class _Editor:
    """Makes edits in a config; `touched` are the paths of what has changed."""

    def __init__(self, config: PipelineConfig) -> None:
        self.config = config
        self.finder = Finder()
        self.touched: set[str] = set()

    def edit(self, path: str, value: Any) -> None:
        """Make one edit."""
        steps = parse_path(str(path))
        parents, many = self.finder.parents(self.config, steps[:-1])
        last = steps[-1]
        if isinstance(last.selector, Append):
            for message, where in parents:
                self._append(message, last.name, value, where)
            return
        places = self.finder.places(parents, last, many)
        if value is None:
            self._clear(places)
            return
        for place in places:
            self.finder.visit()
            self.touched.add(place.path)
            if place.item is None:
                self._replace_field(place, value)
            else:
                self._replace_item(place, value)

    def _replace_field(self, place: Place, value: Any) -> None:
        structured = place.field.is_repeated or place.field.message_type is not None
        if structured and isinstance(value, str):
            value = _read(place, value)
        place.message.ClearField(place.field.name)
        if isinstance(value, Message):
            place.message.MergeFrom(value)
        else:
            fill.set_field(place.message, place.field, value, _raise, place.path)

    def _replace_item(self, place: Place, value: Any) -> None:
        if place.is_map:
            fill.set_field(place.message, place.field, {place.item: value}, _raise, place.path)
            return
        # Built beside the list first, since lists of messages have no assignment of items.
        scratch = type(place.message)()
        if place.field.message_type is not None and isinstance(value, str):
            read = _read(place, value)
            if isinstance(read, Message):
                scratch = read
            else:
                fill.append(scratch, place.field, read, _raise, place.path)
        else:
            fill.append(scratch, place.field, value, _raise, place.path)
        items, new = getattr(place.message, place.field.name), getattr(scratch, place.field.name)
        if len(new) != 1:
            raise EditError(f"{place.path} is one item, not {len(new)}")
        if place.field.message_type is None:
            items[place.item] = new[0]
        else:
            items[place.item].CopyFrom(new[0])

    def _append(self, message: Message, name: str, value: Any, where: str) -> None:
        """Add an item, or every item of a list, at the end."""
        field = find_field(message, name, where)
        if not field.is_repeated or fill.is_map(field):
            raise EditError(f"{fill.join(where, name)} is not a list, so nothing can be appended")
        if value is None:
            raise EditError("null cannot be appended")
        for item in value if isinstance(value, (list, tuple)) else [value]:
            self.finder.visit()
            path = f"{fill.join(where, name)}[{len(getattr(message, name))}]"
            self.touched.add(path)
            if field.message_type is not None and isinstance(item, str):
                read = _read(Place(message, field, path), item)
                if isinstance(read, Message):
                    message.MergeFrom(read)
                    continue
                item = read
            fill.append(message, field, item, _raise, path)

    def _clear(self, places: list[Place]) -> None:
        """Unset fields, and take items out, from the last to the first so that numbers stay right."""
        for place in reversed(places):
            self.finder.visit()
            if place.item is None:
                self.touched.add(place.path)
                place.message.ClearField(place.field.name)
                continue
            # The items behind it move up, so that their lines are no longer known either.
            self.touched.add(place.path if place.is_map else place.path.rpartition("[")[0])
            items = getattr(place.message, place.field.name)
            if place.is_map and place.item not in items:
                raise EditError(f"{place.path} has no key {show(place.item)}")
            del items[place.item]


def _read(place: Place, text: str) -> Any:
    """What text stands for where a list, map or message is wanted: JSON or text format.

    Text format gives a message of the type around the field, with the field set.
    """
    text = text.strip()
    if text[:1] in ("{", "["):
        try:
            return load_json(text, "edit")
        except ConfigError:
            pass
    elif place.field.message_type is not None:
        text = f"{{{text}}}"
    scratch = type(place.message)()
    try:
        parse_text(f"{place.field.name}: {text}", scratch, "edit")
    except ConfigError as error:
        problem = error.problems[0].what.partition("\n")[0]
        raise EditError(f"{place.path}: {show(text)} is neither JSON nor text format ({problem})") from None
    return scratch


def _raise(path: str, what: str) -> None:
    raise EditError(f"{path}: {what}")
