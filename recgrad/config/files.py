"""The files that a config's features read: vocabularies and the like."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from google.protobuf.message import Message

from recgrad.config.fill import is_map

_SUFFIX = "_file"
_FOLDER = "asset_dir"
_CODE = "operator_lib_file"  # a module's import path


@dataclass(frozen=True)
class NamedFile:
    """A field of a message that names a file, such as `vocab_file`.

    Attributes:
        message: that has the field.
        field: its name.
    """

    message: Any
    field: str

    @property
    def path(self) -> str:
        """Where the file is: under `asset_dir` where that is set."""
        return os.path.join(getattr(self.message, _FOLDER, ""), getattr(self.message, self.field))

    def move(self, path: str) -> None:
        """Name another place."""
        setattr(self.message, self.field, path)
        if _FOLDER in self.message.DESCRIPTOR.fields_by_name:
            self.message.ClearField(_FOLDER)


def named_files(message: Message) -> Iterator[NamedFile]:
    """Every file that a message, or one inside it, names by a field that ends with `_file`."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_MESSAGE:
            if is_map(field):
                continue
            for inner in value if field.is_repeated else [value]:
                yield from named_files(inner)
        elif (
            field.type == field.TYPE_STRING
            and not field.is_repeated
            and field.name.endswith(_SUFFIX)
            and field.name != _CODE
            and value
        ):
            yield NamedFile(message, field.name)
