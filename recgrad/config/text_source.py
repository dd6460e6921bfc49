"""Reading protobuf text format, with the place of every field and errors that show it.

One pass fills the message, records where each field stands, and gathers all unknown names
and unfit values; a syntax error ends it. Nothing recurses, so nesting cannot overflow the
stack.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from recgrad.config.fill import is_map, join, other_member
from recgrad.config.locations import REPEATED, Locations
from recgrad.config.text_scalars import number, truth, unescape
from recgrad.config.values import (
    Field,
    UnfitError,
    show,
    unfit,
    unicode_text,
    unknown_enum,
    unknown_field,
)
from recgrad.errors import ConfigError, Problem

MAX_DEPTH = 100
MAX_PROBLEMS = 20

# The last two kinds match any character and the end, so the pattern never backtracks.
_TOKEN = re.compile(
    r"""(?:[ \t\r\n\f\v]|\#[^\n]*)*
    (?:(?P<name>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<mark>[{}<>\[\]:;,\-])
    |(?P<string>"[^"\\\n]*(?:\\.[^"\\\n]*)*"|'[^'\\\n]*(?:\\.[^'\\\n]*)*')
    |(?P<number>(?:0[xX][0-9a-fA-F]+|(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[fF]?)(?![\w.]))
    |(?P<other>(?s:.))
    |(?P<end>\Z))""",
    re.VERBOSE,
)
_WORD = re.compile(r"[\w.+-]+")
_CLOSERS = {"{": "}", "<": ">", "[": "]"}


@dataclass(slots=True)
class _Frame:
    """A message that is being read."""

    message: Message
    path: str
    closer: str
    opened: int
    entry_of: tuple[Message, Field] | None = None
    in_list: Field | None = None


def parse_text(text: str, message: Message, source: str) -> Locations:
    """Fill `message` from text format; returns where its fields stand.

    Raises:
        ConfigError: syntax, unknown names and unfit values, with line, column and caret.
    """
    parser = _Parser(text, message, source)
    parser.run()
    return parser.locations


class _Parser:
    """A cursor over the tokens, and the stack of open messages."""

    def __init__(self, text: str, message: Message, source: str) -> None:
        self.text = text
        self.offsets: dict[str, int] = {}
        self.locations = Locations(source, text, lambda: self.offsets)
        self.problems: list[Problem] = []
        self.stack = [_Frame(message, "", "", 0)]
        self.end = 0
        self.advance()

    def advance(self) -> None:
        """Step to the next token."""
        match = _TOKEN.match(self.text, self.end)
        assert match is not None
        assert match.lastgroup is not None
        self.kind = match.lastgroup
        self.start, self.end = match.span(self.kind)
        self.token = match.group(self.kind)

    def run(self) -> None:
        """Read the whole text."""
        while self.stack:
            frame = self.stack[-1]
            if self.kind == "name":
                self.field(frame)
            elif self.token == frame.closer and self.kind in ("mark", "end"):
                self.close(frame)
            elif self.kind == "end":
                self.unclosed(frame)
            elif self.token == "[":
                raise self.error("extensions and Any are not part of the config language")
            else:
                raise self.error(f"expected a field name, got {self.seen()}")
        if self.problems:
            raise ConfigError(self.problems)

    def field(self, frame: _Frame) -> None:
        """Read a field's name, and its value unless that is a message."""
        name, offset = self.token, self.start
        self.advance()
        field = frame.message.DESCRIPTOR.fields_by_name.get(name)
        if field is None:
            self.report(unknown_field(frame.message.DESCRIPTOR, name), offset, frame.path)
            self.skip_value()
            return
        colon = self.take(":")
        if self.kind == "mark" and self.token == "[":
            self.list_of(frame, field, offset)
        elif field.message_type is not None:
            self.open(frame, field, offset, in_list=False)
        elif not colon:
            raise self.error(f"expected ':' after '{name}', got {self.seen()}")
        else:
            self.scalar(frame, field, offset)
            self.separator()

    def list_of(self, frame: _Frame, field: Field, offset: int) -> None:
        """Read `[a, b]`; messages in it are read by the main loop, one by one."""
        if not field.is_repeated:
            self.report(f"'{field.name}' holds one value, not a list", offset, frame.path)
            self.skip_value()
            return
        opened = self.start
        self.advance()
        if self.take("]"):
            self.offsets.setdefault(join(frame.path, field.name), offset)
            self.separator()
            return
        if field.message_type is not None:
            self.open(frame, field, self.start, in_list=True)
            return
        while True:
            self.scalar(frame, field, self.start)
            if self.take("]"):
                break
            if not self.take(","):
                if self.kind == "end":
                    raise self.error("this '[' is not closed", opened)
                raise self.error(f"expected ',' or ']', got {self.seen()}")
        self.separator()

    def open(self, frame: _Frame, field: Field, offset: int, *, in_list: bool) -> None:
        """Begin a message value."""
        if self.kind != "mark" or self.token not in "{<":
            raise self.error(f"expected '{{' after '{field.name}', got {self.seen()}")
        if len(self.stack) > MAX_DEPTH:
            raise self.error(f"messages are nested more than {MAX_DEPTH} deep")
        self.check_oneof(frame, field, offset)
        closer, opened = _CLOSERS[self.token], self.start
        self.advance()
        path = join(frame.path, field.name)
        message = frame.message
        entry_of = None
        if is_map(field):
            entry_of = (message, field)
            child = _new_entry(field)
            self.offsets.setdefault(path, offset)
            # Entries share a path: the key of the one before is not this one's, set twice.
            self.offsets.pop(join(path, "key"), None)
        elif field.is_repeated:
            items = getattr(message, field.name)
            path = f"{path}[{len(items)}]"
            child = items.add()
        else:
            child = getattr(message, field.name)
            child.SetInParent()
        self.offsets.setdefault(path, offset)
        self.stack.append(_Frame(child, path, closer, opened, entry_of, field if in_list else None))

    def close(self, frame: _Frame) -> None:
        """End a message; inside a list, begin the next one."""
        opened = frame.opened
        self.stack.pop()
        if not self.stack:
            return
        self.advance()
        if frame.entry_of is not None:
            self.add_entry(frame)
        if frame.in_list is None:
            self.separator()
        elif self.take(","):
            self.open(self.stack[-1], frame.in_list, self.start, in_list=True)
        elif self.take("]"):
            self.separator()
        elif self.kind == "end":
            raise self.error("the list around this message is not closed", opened)
        else:
            raise self.error(f"expected ',' or ']', got {self.seen()}")

    def add_entry(self, frame: _Frame) -> None:
        """Put a finished map entry into its map."""
        assert frame.entry_of is not None
        entry: Any = frame.message
        message, field = frame.entry_of
        target = getattr(message, field.name)
        if entry.key in target:
            self.report(f"key {show(entry.key)} is given twice", frame.opened, frame.path)
        elif field.message_type.fields_by_name["value"].message_type is not None:
            target[entry.key].CopyFrom(entry.value)
        else:
            target[entry.key] = entry.value

    def scalar(self, frame: _Frame, field: Field, offset: int) -> None:
        """Read one scalar and store it."""
        start = self.start
        if field.message_type is not None:
            raise self.error(f"expected '{{', got {self.seen()}")
        try:
            value = self.value(field)
        except UnfitError as problem:
            self.report(str(problem), start, join(frame.path, field.name))
            return
        if field.is_repeated:
            items = getattr(frame.message, field.name)
            self.offsets[f"{join(frame.path, field.name)}[{len(items)}]"] = offset
            items.append(value)
            return
        path = join(frame.path, field.name)
        if frame.message.HasField(field.name) if field.has_presence else path in self.offsets:
            self.repeat(frame, field, path, offset)
        self.check_oneof(frame, field, offset)
        self.offsets[path] = offset
        setattr(frame.message, field.name, value)

    def repeat(self, frame: _Frame, field: Field, path: str, offset: int) -> None:
        """Warn of a value that is set again; the key of a map's entry has no second one."""
        if frame.entry_of is not None:
            self.report(f"'{field.name}' is set twice; keep one", offset, frame.path)
        elif len(self.locations.repeated) < MAX_PROBLEMS:
            self.locations.repeated.append(f"{self.locations.at(offset, path)}: {REPEATED}")

    def value(self, field: Field) -> Any:
        """The value at the cursor in the field's type; the cursor moves past it in any case."""
        minus = self.end
        negative = self.take("-")
        if negative and self.start != minus:
            raise self.error("expected a number right after '-'", minus - 1)
        kind, token, start = self.kind, self.token, self.start
        if kind == "string":
            text = self.strings()
            if negative or field.type != FieldDescriptor.TYPE_STRING:
                raise self.misplaced_string(field, text)
            return unicode_text(text)
        if kind not in ("name", "number"):
            if kind == "other" and token in "'\"":
                raise self.error("this text has no closing quote on its line", start)
            raise self.error(f"expected a value for '{field.name}', got {self.seen()}")
        self.advance()
        if field.type == FieldDescriptor.TYPE_STRING:
            raise UnfitError(f'text must be in quotes: "{"-" if negative else ""}{token[:80]}"')
        if field.enum_type is not None and kind == "name" and not negative:
            if token not in field.enum_type.values_by_name:
                raise UnfitError(unknown_enum(field.enum_type, token))
            return field.enum_type.values_by_name[token].number
        if field.type == FieldDescriptor.TYPE_BOOL:
            return truth(field, "-" + token if negative else token)
        return number(field, kind, token, negative)

    def misplaced_string(self, field: Field, text: str) -> UnfitError:
        """The error for text where something else is wanted."""
        if field.enum_type is not None and text in field.enum_type.values_by_name:
            return UnfitError(f"write {text} without quotes")
        return unfit(field, text)

    def strings(self) -> str:
        """Adjacent string tokens, joined and unescaped."""
        parts = []
        while self.kind == "string":
            body = self.token[1:-1]
            try:
                parts.append(unescape(body) if "\\" in body else body)
            except UnfitError as problem:
                raise self.error(str(problem)) from None
            self.advance()
        return "".join(parts)

    def check_oneof(self, frame: _Frame, field: Field, offset: int) -> None:
        """Report a second member of a oneof, which would silently replace the first."""
        other = other_member(frame.message, field)
        if other is not None:
            self.report(f"{other} and {field.name} are both set; keep one", offset, frame.path)

    def skip_value(self) -> None:
        """Pass over the value of a field that is not known."""
        self.take(":")
        start, open_marks = self.start, []
        while True:
            if self.kind == "mark" and self.token in _CLOSERS:
                open_marks.append(_CLOSERS[self.token])
            elif self.kind == "mark" and self.token in "}>]":
                if not open_marks or open_marks.pop() != self.token:
                    raise self.error(f"unexpected {self.seen()}")
            elif self.kind == "end":
                if not open_marks:
                    raise self.error("expected a value, got the end of the file")
                raise self.error("this value is not closed", start)
            elif self.kind == "other":
                raise self.error(f"unexpected {self.seen()}")
            negative, kind = self.token == "-", self.kind
            self.advance()
            joined = kind == "string" and self.kind == "string"
            if not open_marks and not negative and not joined:
                break
        self.separator()

    def separator(self) -> None:
        """Pass over the `,` or `;` that may follow a field."""
        if self.kind == "mark" and self.token in ",;":
            self.advance()

    def take(self, mark: str) -> bool:
        """Pass over a mark if it is next."""
        if self.kind == "mark" and self.token == mark:
            self.advance()
            return True
        return False

    def unclosed(self, frame: _Frame) -> None:
        """Raise for a message that the text ends in."""
        raise self.error(f"this '{self.text[frame.opened]}' is not closed", frame.opened)

    def seen(self) -> str:
        """The token at the cursor, for errors."""
        if self.kind == "end":
            return "the end of the file"
        if self.kind == "other" and not self.token.isprintable():
            return f"the character U+{ord(self.token):04X}"
        word = _WORD.match(self.text, self.start)
        return f"'{(word.group() if word and self.kind == 'other' else self.token)[:60]}'"

    def report(self, what: str, offset: int, path: str) -> None:
        """Add a problem that does not end the reading, until there are too many."""
        place = self.locations.at(offset, path)
        self.problems.append(Problem(place, f"{what}\n{self.locations.excerpt(offset)}"))
        if len(self.problems) >= MAX_PROBLEMS:
            raise ConfigError(
                [*self.problems, Problem(self.locations.source, "further problems are not shown")]
            )

    def error(self, what: str, offset: int | None = None) -> ConfigError:
        """A syntax error at the cursor, after the problems found before it."""
        offset = self.start if offset is None else offset
        path = self.stack[-1].path if self.stack else ""
        place = self.locations.at(offset, path)
        return ConfigError([*self.problems, Problem(place, f"{what}\n{self.locations.excerpt(offset)}")])


def _new_entry(field: Field) -> Message:
    entry: Message = field.message_type._concrete_class()
    return entry
