"""`recgrad list`: what a config can name, read from the registries and the schema."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from recgrad.cli.command import COMMANDS, Command, heavy_imports
from recgrad.cli.console import table_console
from recgrad.terminal import printable, say

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor

    from recgrad.registry_text import Written

KINDS = {
    "optimizers": ("dense_optimizer", "sparse_optimizer"),
    "schedules": ("schedule",),
    "losses": ("loss",),
    "metrics": ("metric", "train_metric"),
    "models": ("model",),
    "features": ("feature",),
    "readers": ("reader",),
    "samplers": ("sampler",),
    "encoders": ("sequence_encoder",),
}


@dataclass(frozen=True)
class Listed:
    """One thing that a config can name."""

    name: str
    kind: str
    summary: str
    paper: str
    parameters: tuple[str, ...]


@COMMANDS.register("list")
class List(Command):
    """List what a config can name: optimizers, schedules, losses, metrics, models, features …

    Without a kind, lists the kinds. With a name after the kind, shows that one alone. Classes of your
    own of every kind go beside these, by import path: docs/extending.md.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "kind", nargs="?", choices=sorted(KINDS), metavar="KIND", help=", ".join(sorted(KINDS))
        )
        parser.add_argument("name", nargs="?", metavar="NAME", help="show one of them")
        parser.add_argument(
            "--long",
            metavar="CONFIG",
            help="with models: what each ranking model costs for a config's features",
        )
        parser.add_argument(
            "--time", action="store_true", help="with --long: rows per second of training, measured here"
        )

    def run(self, args: argparse.Namespace) -> int:
        if args.long is not None or args.time:
            return show_costs(args)
        if args.kind is None:
            say(describe_kinds())
            return 0
        entries = [entry for kind in KINDS[args.kind] for entry in list_kind(kind)]
        if args.name is not None:
            from recgrad.errors import RecgradError, nearest

            known = [entry.name for entry in entries]
            entries = [entry for entry in entries if entry.name == args.name]
            if not entries:
                raise RecgradError(f"recgrad list {args.kind}: no '{args.name}'{nearest(args.name, known)}")
        show_entries(args.kind, entries)
        return 0


def show_costs(args: argparse.Namespace) -> int:
    """A line for each ranking model: what it costs for the features of a config."""
    from recgrad.errors import RecgradError

    if args.kind != "models" or args.long is None:
        raise RecgradError("list: --long CONFIG (and --time with it) is for `recgrad list models`")
    with heavy_imports():
        from recgrad.config import load_config
        from recgrad.report.costs import model_costs
    say(
        "Equal layers for all (256-128-64); multiply-adds are those of matrix products. Of the sequences\n"
        "one is read, with 50 positions, by models that attend to it.\n"
    )
    speed = "   rows/s" if args.time else ""
    say(f"{'model':<18} {'parameters':>12} {'in tables':>14} {'multiply-adds/row':>18}{speed}")
    names = None if args.name is None else [args.name]
    for cost in model_costs(load_config(args.long), timed=args.time, names=names):
        if cost.problem:
            say(f"{cost.name:<18} {'—':>12}  {cost.problem}")
            continue
        timed = "" if cost.rows_per_sec is None else f"{cost.rows_per_sec:>9,.0f}"
        sizes = f"{cost.parameters:>12,} {cost.table_parameters:>14,} {cost.multiply_adds:>18,}"
        say(f"{cost.name:<18} {sizes}{timed}")
    return 0


def describe_kinds() -> str:
    """A line for each kind: how many there are, and as many of them as fit."""
    lines = []
    for kind, parts in KINDS.items():
        known = [name for part in parts for name in list_names(part)]
        shown = shorten(", ".join(dict.fromkeys(known)), 62, placeholder=" …")
        lines.append(f"{kind:<12}{len(known):>3}  {shown}")
    lines.append("\n`recgrad list KIND` shows them with their parameters.")
    return "\n".join(lines)


def list_names(kind: str) -> list[str]:
    """The config names of one kind, in order; nothing is imported for it."""
    from recgrad.check.capabilities import HOMES, REGISTRIES, custom_names
    from recgrad.registry import entry_point_group, entry_points_of
    from recgrad.registry_text import written_names

    written = written_names(HOMES[kind].package, HOMES[kind].variable)
    if written is None:
        written = list(REGISTRIES[kind])
    added = [entry.name for entry in entry_points_of(entry_point_group(kind))]
    return sorted({*written, *added, *custom_names(kind)})


def show_entries(kind: str, entries: Sequence[Listed]) -> None:
    """A paragraph for each entry, as wide as the terminal is."""
    from rich.padding import Padding
    from rich.text import Text

    console = table_console()
    console.print(f"{kind} ({len(entries)})", markup=False)
    for entry in entries:
        half = f" ({entry.kind.partition('_')[0]})" if len(KINDS[kind]) > 1 else ""
        console.print()
        console.print(Text(printable(entry.name), style="bold") + Text(half))
        for line in (entry.summary, ", ".join(entry.parameters), entry.paper and f"Paper: {entry.paper}"):
            if line:  # as it is: [rows, 2] is no markup
                console.print(Padding(Text(printable(line)), (0, 0, 0, 2), expand=False))


def list_kind(kind: str) -> Iterator[Listed]:
    """The components of one kind, with the parameters that the schema gives them.

    Those that are built in are read from their files; those of other packages are imported.
    """
    from recgrad.check.capabilities import HOMES, REGISTRIES, custom_names, schema_messages
    from recgrad.registry import entry_point_group, entry_points_of
    from recgrad.registry_text import written_components

    messages = schema_messages(kind)
    home = HOMES[kind]
    written = written_components(home.package, home.variable)
    if written is None:
        yield from (describe_component(kind, name, found) for name, found in REGISTRIES[kind].items())
        names = set(REGISTRIES[kind])
    else:
        added = {entry.name for entry in entry_points_of(entry_point_group(kind))}
        found = [_built_in(kind, entry, messages.get(entry.name)) for entry in written]
        found += [describe_component(kind, name, REGISTRIES[kind][name]) for name in added]
        yield from sorted(found, key=lambda entry: entry.name)
        names = {entry.name for entry in found}
    for name in [name for name in custom_names(kind) if name not in names]:
        what = "A class of your own, named by its import path and made with params: docs/extending.md."
        yield Listed(
            name, kind, what, "", tuple(_parameters(messages.get(name))) or _by_class_path(kind, "…")
        )


def _built_in(kind: str, entry: Written, message: Descriptor | None) -> Listed:
    text = entry.doc.strip()
    return Listed(
        name=entry.name,
        kind=kind,
        summary=text.partition("\n")[0],
        paper=_paper(text) or _address(entry.module_doc),
        parameters=tuple(_parameters(message)),
    )


def describe_component(kind: str, name: str, component: Any) -> Listed:
    """What is listed of a class or function; a config names what other packages add by class_path."""
    from recgrad.check.capabilities import HOMES, schema_messages

    text = (getattr(component, "__doc__", None) or "").strip()
    module = str(getattr(component, "__module__", ""))
    message = schema_messages(kind).get(name)
    own = message is None and not module.startswith(f"{HOMES[kind].package}.")
    return Listed(
        name=name,
        kind=kind,
        summary=text.partition("\n")[0],
        paper=_paper(text) or _address(getattr(sys.modules.get(module), "__doc__", None) or ""),
        parameters=_by_class_path(kind, name) if own else tuple(_parameters(message)),
    )


def _by_class_path(kind: str, name: str) -> tuple[str, ...]:
    """How a config names what another package has added, which no field of the schema chooses."""
    from recgrad.check.capabilities import CLASS_PATH_FIELDS, custom_names

    fields = [CLASS_PATH_FIELDS.get(field, field) for field in custom_names(kind)]
    return tuple(f'{field} {{ class_path: "{name}" }}' for field in fields)


def _parameters(message: Descriptor | None) -> Iterator[str]:
    for field in message.fields if message is not None else ():
        if field.has_default_value:
            default = field.default_value
            if field.enum_type is not None:
                default = field.enum_type.values_by_number[default].name
            if field.name == "fused":
                default = True  # a kernel that the config says nothing of is taken wherever it is right
            yield f"{field.name}={_short(default)}"
        else:
            yield field.name


def _short(value: Any) -> str:
    from recgrad.config.messages import shortest_float

    if isinstance(value, float):
        return f"{shortest_float(value):g}"
    return repr(value) if isinstance(value, str) and not value.isidentifier() else str(value)


def _address(module_doc: str) -> str:
    """The line of a file's docstring that holds the paper's address: models begin with it."""
    return next((line.strip() for line in module_doc.splitlines() if "://" in line), "")


def _paper(text: str) -> str:
    """The line of a docstring that begins with `Paper:`."""
    for line in text.splitlines():
        if line.strip().lower().startswith("paper:"):
            return line.strip()[len("paper:") :].strip()
    return ""
