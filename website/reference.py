"""Reference pages from the code itself: the Python API, the commands and the schema of configs."""

from __future__ import annotations

import argparse
import ast
import functools
import inspect
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PUBLIC = (
    "recgrad",
    "recgrad.config",
    "recgrad.data",
    "recgrad.losses",
    "recgrad.metrics",
    "recgrad.models",
    "recgrad.optim",
    "recgrad.optim.dense",
    "recgrad.optim.schedules",
    "recgrad.optim.sparse",
    "recgrad.training.checkpoint",
)
"""The packages of docs/api.md."""


@functools.cache
def api_pages() -> dict[str, str]:
    """A page for each public package: mkdocstrings fills in what the docstrings say."""
    told: set[str] = set()
    deepest_first = sorted(PUBLIC, key=lambda name: (name != "recgrad", -name.count(".")))
    pages = {name: _api_page(name, told) for name in deepest_first}
    return {f"reference/{name}.md": pages[name] for name in PUBLIC}


def _api_page(name: str, told: set[str]) -> str:
    """The names of a package; what another page has told already is only named, with a link."""
    parts = [f"# {name}\n\nHow the parts fit together: [The Python API](../api.md).\n"]
    for public in _public_names(name):
        home = _home(name, public)
        module, _, own = home.rpartition(".")
        if home in PUBLIC:
            parts.append(f"\n## {public}\n\nA package: [{home}]({home}.md)\n")
        elif home in told:
            parts.append(f"\n## {public}\n\nSee [{home}][].\n")
        elif isinstance(_definition(module, own), (ast.ClassDef, ast.FunctionDef)):
            told.add(home)
            parts.append(f"\n::: {home}\n")
        elif public == "PipelineConfig":
            parts.append("\n## PipelineConfig\n\nA whole config: [all settings](schema.md#pipelineconfig).\n")
        else:
            parts.append(f"\n## `{public}`\n\n`{home}`\n")
    return "".join(parts)


@functools.cache
def _tree(module: str) -> ast.Module | None:
    """The syntax of a module; importing it would load torch."""
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8")) if file.is_file() else None


def _public_names(package: str) -> list[str]:
    """`__all__`, with the generated list of classes where it has one."""
    assigned = _definition(package, "__all__")
    assert isinstance(assigned, ast.Assign)
    assert isinstance(assigned.value, ast.List)
    names: list[str] = []
    for entry in assigned.value.elts:
        names += [entry.value] if isinstance(entry, ast.Constant) else _homes(package)
    return sorted(map(str, names), key=lambda name: (name.isupper(), name.lower()))


def _homes(package: str) -> dict[str, str]:
    """Where the classes of a package live, as `make names` has written it."""
    made = _definition(f"{package}._public", "HOMES")
    return ast.literal_eval(made.value) if isinstance(made, ast.Assign) else {}


def _definition(module: str, name: str) -> ast.stmt | None:
    """The statement of a module that makes a name, or imports it for type checkers."""
    tree = _tree(module)
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and name in [alias.asname or alias.name for alias in node.names]:
            return node
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return node if isinstance(node, ast.stmt) else None
    return None


def _home(package: str, name: str) -> str:
    """The full name of what a package exports, at the place where it is made."""
    if name in _homes(package):
        return _home(_homes(package)[name], name)
    found = _definition(package, name)
    if isinstance(found, ast.ImportFrom) and found.module:
        if f"{found.module}.{name}" in PUBLIC:
            return f"{found.module}.{name}"
        return _home(found.module, name)
    return f"{package}.{name}"


@functools.cache
def command_pages() -> dict[str, str]:
    """A page for each command: its description and its flags, as `--help` shows them."""
    from recgrad.cli.command import COMMANDS
    from recgrad.cli.main import build_parser

    parser = build_parser()
    (action,) = [found for found in parser._actions if isinstance(found, argparse._SubParsersAction)]
    pages = {}
    for name in COMMANDS:
        sub = action.choices[name]
        sub.formatter_class = lambda prog: argparse.RawDescriptionHelpFormatter(prog, width=100)
        text = sub.format_help()
        first, _, rest = inspect.cleandoc(COMMANDS[name].__doc__ or "").partition("\n")
        text = text.replace(sub.description or "", "").strip()
        text = re.sub(r"\n{3,}", "\n\n", text)
        said = f"{first}\n\n{rest.strip()}"
        pages[f"reference/commands/{name}.md"] = (
            f"---\ntitle: {name}\n---\n\n# recgrad {name}\n\n{said}\n\n```text\n{text}\n```\n"
        )
    return pages


MESSAGE = re.compile(r"^(?:message|enum) (\w+) \{")
FIELD = re.compile(
    r"^(?:(optional|required|repeated) )?(map<[^>]+>|[\w.]+) (\w+) = \d+(?: \[(.*)\])?;\s*(?://\s*(.*))?$"
)
ENUM_VALUE = re.compile(r"^(\w+) = \d+;\s*(?://\s*(.*))?$")


@functools.cache
def schema_page() -> dict[str, str]:
    """Every message and field of a config with its type, default and comment, from the .proto files."""
    parts = [
        "# All settings\n\nEvery message of a config and its fields, as the schema has them. "
        "[The config language](../config.md) explains how they are written, and `recgrad check` finds what "
        "is wrong in yours. `PipelineConfig` is the whole file.\n"
    ]
    files = sorted(
        (ROOT / "recgrad/config/proto").glob("*.proto"), key=lambda path: (path.stem != "pipeline", path.stem)
    )
    texts = [path.read_text(encoding="utf-8") for path in files]
    known = {name for text in texts for name in re.findall(r"^\s*(?:message|enum) (\w+) \{", text, re.M)}
    for text in texts:
        parts += _messages(text, known)
    return {"reference/schema.md": "".join(parts)}


def _messages(text: str, known: set[str]) -> list[str]:
    """The messages of a file as headings with a table each."""
    parts: list[str] = []
    comment: list[str] = []
    stack: list[str] = []
    rows: dict[str, list[str]] = {}
    notes: dict[str, str] = {}
    order: list[str] = []
    for line in text.splitlines():
        line = line.strip()
        if line.startswith("//"):
            comment.append(line.removeprefix("//").strip())
            continue
        said = " ".join(comment)
        if opened := MESSAGE.match(line):
            stack.append(opened[1])
            order.append(opened[1])
            rows[opened[1]], notes[opened[1]] = [], said
            if line.endswith("}"):
                stack.pop()
        elif line.startswith("oneof "):
            stack.append(f"oneof {line.split()[1]}")
        elif line == "}":
            stack.pop()
        elif stack:
            owner = next(name for name in reversed(stack) if not name.startswith("oneof "))
            choice = stack[-1].removeprefix("oneof ") if stack[-1].startswith("oneof ") else ""
            if row := _row(line, said, choice, known):
                rows[owner].append(row)
        comment = []
    for name in order:
        parts.append(f"\n## {name}\n\n{_cell(notes[name])}\n")
        if rows[name]:
            parts.append(
                "\n| field | type | default | meaning |\n| --- | --- | --- | --- |\n" + "".join(rows[name])
            )
    return parts


def _row(line: str, said: str, choice: str, known: set[str]) -> str:
    """A field, or a value of an enumeration, as a row of a table."""
    if value := ENUM_VALUE.match(line):
        return f"| `{value[1]}` | | | {_cell(said or value[2] or '')} |\n"
    field = FIELD.match(line)
    if field is None:
        return ""
    rule, kind, name, options, beside = field.groups()
    default = re.search(r"default = (\"[^\"]*\"|[^,\]]+)", options or "")
    linked = f"[{kind}](#{kind.lower()})" if kind in known else kind
    how = {"repeated": "list of ", "required": ""}.get(rule or "", "")
    meaning = _cell(said or beside or "")
    meaning = f"one of `{choice}`. {meaning}" if choice else meaning
    shown = f"`{default[1]}`" if default else "required" if rule == "required" else ""
    return f"| `{name}` | {how}{linked} | {shown} | {meaning} |\n"


def _cell(text: str) -> str:
    """A comment inside a table: words that Markdown would read as marks are shown as they are."""
    parts = re.split(r"(`[^`]*`)", text)
    escaped = [part if part.startswith("`") else re.sub(r"([*_<\[])", r"\\\1", part) for part in parts]
    return "".join(escaped).replace("|", "\\|")
