"""The classes that a config names by import path: the one way in which a config brings code of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from recgrad.config.fill import join
from recgrad.config.locations import Locations
from recgrad.config.values import show
from recgrad.errors import ConfigError, Problem

CLASS_PATH = "class_path"
ACTIVATION = "activation"
OPERATOR = "operator_lib_file"
_NO_CODE = (".so", ".dll", ".dylib")  # libraries are never loaded; what is built in stands in for them


@dataclass(frozen=True, slots=True)
class ClassPath:
    """A class that a config names.

    Attributes:
        path: of the field that names it.
        name: what the field says.
    """

    path: str
    name: str

    @property
    def imports(self) -> bool:
        """Whether it is an import path; a name without a dot is of the entry points of a package."""
        return "." in self.name


def names_class(message: Any) -> bool:
    """Whether messages of a type (a descriptor) name a class of the user's own, with params for it."""
    return CLASS_PATH in message.fields_by_name


def class_paths(config: Message) -> tuple[ClassPath, ...]:
    """The classes that a run of the config would import, in the order of the config."""
    return tuple(_class_paths(config, ""))


def refuse_custom_code(config: Message, locations: Locations) -> None:
    """Raise for every class that the config would import; names that installed packages register may stay."""
    problems = custom_code_problems(config, locations)
    if problems:
        raise ConfigError(problems)


def custom_code_problems(config: Message, locations: Locations) -> list[Problem]:
    """A problem for every class that the config would import."""
    return [
        Problem(
            locations.where(found.path),
            f"{show(found.name)} would be imported, and custom code is refused (--no_custom_code, or "
            "custom_code=False); use a component of Recgrad, or allow it if you trust the config",
        )
        for found in class_paths(config)
        if found.imports
    ]


def imported_activation(text: str) -> str:
    """The import path in an activation such as `my.Swish(beta=2)`; empty for torch's own and for Dice."""
    name = text.partition("(")[0].strip()
    short = name.removeprefix("torch.").removeprefix("nn.")
    return name if "." in short and not name.startswith("torch.nn.") else ""


def _class_paths(message: Any, path: str) -> Iterator[ClassPath]:
    if names_class(message.DESCRIPTOR):
        yield ClassPath(join(path, CLASS_PATH), message.class_path)
    for field, value in message.ListFields():
        where = join(path, field.name)
        if field.name == OPERATOR:
            if not value.endswith(_NO_CODE):
                own = value != "recgrad"
                yield ClassPath(where, f"{value}.{message.operator_name}" if own else message.operator_name)
            continue
        text = field.type == field.TYPE_STRING  # others choose among words of the schema
        if text and (field.name == ACTIVATION or field.name.endswith(f"_{ACTIVATION}")):
            name = imported_activation(value)
            if name:
                yield ClassPath(where, name)
        elif field.message_type is None or field.message_type.GetOptions().map_entry:
            continue
        elif field.is_repeated:
            for number, item in enumerate(value):
                yield from _class_paths(item, f"{where}[{number}]")
        else:
            yield from _class_paths(value, where)
