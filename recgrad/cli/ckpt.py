"""`recgrad ckpt`: look into checkpoints, compare them, check that they are whole."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recgrad.cli.command import COMMANDS, Command
from recgrad.cli.console import table_console
from recgrad.embedding.living import NUM_ROWS
from recgrad.errors import CheckpointError, whole_path
from recgrad.terminal import printable

if TYPE_CHECKING:
    from rich.console import Console

    from recgrad.training.checkpoint import Difference, Snapshot
    from recgrad.training.checkpoint.manifest import TableEntry

EXIT_DIFFERENT = 1
EXIT_DAMAGED = 2


@COMMANDS.register("ckpt")
class Ckpt(Command):
    """List, show, compare and verify checkpoints.

    A PATH is a checkpoint folder (model.ckpt-100) or a model dir, which means its newest whole one.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the four actions."""
        actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
        listing = actions.add_parser("list", help="the checkpoints of a model dir")
        listing.add_argument("model_dir", metavar="MODEL_DIR", type=Path)
        show = actions.add_parser("show", help="step, versions, tables and parameters of a checkpoint")
        show.add_argument("path", metavar="PATH", type=Path)
        diff = actions.add_parser("diff", help="how two checkpoints differ; exit code 1 if they do")
        diff.add_argument("first", metavar="A", type=Path)
        diff.add_argument("second", metavar="B", type=Path)
        diff.add_argument("--all", action="store_true", help="show what is equal, too")
        verify = actions.add_parser("verify", help="read every byte; exit code 2 if something is damaged")
        verify.add_argument("path", metavar="PATH", type=Path, help="a model dir means all its checkpoints")

    def run(self, args: argparse.Namespace) -> int:
        """Do one of the actions."""
        actions = {"list": _list, "show": _show, "diff": _diff, "verify": _verify}
        return actions[args.action](args, table_console())


def _list(args: argparse.Namespace, console: Console) -> int:
    from recgrad.training.checkpoint import CheckpointManager, verify_checkpoint

    manager = CheckpointManager(args.model_dir)
    _require_folder(args.model_dir)
    steps = manager.steps()
    if not steps:
        raise CheckpointError(f"{args.model_dir}: has no checkpoint (a folder named model.ckpt-<step>)")
    best = manager.best()
    table = _table("checkpoint", ">step", ">size", ">tables", ">touched rows", "")
    for step in steps:
        name = manager.path(step).name
        try:
            manifest = verify_checkpoint(manager.path(step), checksums=False)
        except CheckpointError as error:
            table.add_row(name, f"{step:,}", "", "", "", _plain(f"damaged: {error}"))
            continue
        rows = sum(entry.touched_rows for entry in manifest.tables)
        note = "best" if step == best else ""
        size = _size(manifest.num_bytes)
        table.add_row(name, f"{step:,}", size, f"{len(manifest.tables)}", f"{rows:,}", note)
    console.print(table)
    return 0


def _show(args: argparse.Namespace, console: Console) -> int:
    from recgrad.training.checkpoint import load_manifest, read_checkpoint, resolve_checkpoint

    path = resolve_checkpoint(args.path)
    manifest = load_manifest(path)
    snapshot = read_checkpoint(path, verify=False)
    versions = ", ".join(f"{name} {version}" for name, version in manifest.versions.items())
    console.print(
        _plain(f"{path}: step {manifest.step:,}, {_size(manifest.num_bytes)}, written by {versions}")
    )
    for rank, conditions in enumerate(manifest.computed_on):
        which = f"rank {rank} " if len(manifest.computed_on) > 1 else ""
        console.print(_plain(f"{which}computed with {_conditions_text(conditions)}"))
    _show_tables(snapshot, {entry.name: entry for entry in manifest.tables}, console)
    _show_parameters(snapshot, console)
    _show_rest(snapshot, console)
    return 0


def _conditions_text(conditions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in conditions.items())


def _show_tables(snapshot: Snapshot, entries: Mapping[str, TableEntry], console: Console) -> None:
    if not snapshot.tables:
        return
    columns = ("table", ">rows", ">touched", ">dim", "dtype", "optimizer states", ">size", "shards")
    cells = [_table_cells(rows, entries[rows.name]) for rows in sorted(snapshot.tables, key=lambda r: r.name)]
    table = _filled(columns, cells)
    unbound = console.options.update(max_width=10_000)
    if console.measure(table, options=unbound).maximum > console.width:
        # What is the same of every table is said once.
        cells = [[cell.replace(f"[{row[3]}]", "[dim]") for cell in row] for row in cells]
        same = [i for i in (4, 5, 7) if len({row[i] for row in cells}) == 1]
        kept = [i for i in range(len(columns)) if i not in same]
        table = _filled([columns[i] for i in kept], [[row[i] for i in kept] for row in cells])
        said = [f"{columns[i]} {cells[0][i]}" for i in same]
        console.print(table)
        if said:
            console.print(_plain(f"every table: {'; '.join(said)}"))
        return
    console.print(table)


def _table_cells(rows: Any, entry: TableEntry) -> list[str]:
    none = rows.part((0, 0))
    states = ", ".join(_describe_state(name, state) for name, state in none.states.items()) or "none"
    return [
        rows.name,
        "by id" if rows.num_rows == NUM_ROWS else f"{rows.num_rows:,}",
        f"{rows.touched_rows:,}",
        f"{rows.dim}",
        str(none.weights.dtype),
        states,
        _size(rows.nbytes),
        _describe_shards(entry),
    ]


def _describe_shards(entry: TableEntry) -> str:
    """`1`, `4` of row ranges, `4 (columns 0-7, 8-15)` of slices of columns."""
    count = f"{len(entry.shards)}"
    slices = ", ".join(f"{first}-{first + width - 1}" for first, width in sorted(set(entry.columns)))
    return f"{count} (columns {slices})" if slices else count


def _describe_state(name: str, state: Any) -> str:
    """`exp_avg [16]`, or `t 100` of a number that belongs to the whole table."""
    return f"{name} {state}" if state.ndim == 0 else f"{name} [{state.shape[1]}]"


def _show_parameters(snapshot: Snapshot, console: Console) -> None:
    arrays = dict(_arrays(snapshot.tree.get("model", {})))
    if not arrays:
        return
    table = _table("parameter", "shape", "dtype", ">size")
    for name, value in arrays.items():
        shape = "×".join(map(str, value.shape)) or "scalar"
        table.add_row(_plain(name), shape, str(value.dtype).removeprefix("torch."), _size(value.nbytes))
    console.print(table)


def _show_rest(snapshot: Snapshot, console: Console) -> None:
    table = _table("also holds", ">arrays", ">size")
    for section, content in snapshot.tree.items():
        if section == "model":
            continue
        arrays = dict(_arrays(content))
        table.add_row(_plain(section), f"{len(arrays)}", _size(sum(a.nbytes for a in arrays.values())))
    if table.row_count:
        console.print(table)


def _diff(args: argparse.Namespace, console: Console) -> int:
    from recgrad.training.checkpoint import diff_snapshots, read_checkpoint, resolve_checkpoint

    paths = [resolve_checkpoint(args.first), resolve_checkpoint(args.second)]
    first, second = (read_checkpoint(path) for path in paths)
    found = diff_snapshots(first, second)
    different = [item for item in found if not item.equal]
    console.print(_plain(f"A {paths[0]}: step {first.step:,}\nB {paths[1]}: step {second.step:,}"))
    if first.step != second.step or different:
        if args.all or different:
            console.print(_difference_table(found if args.all else different))
        console.print(
            f"{len(different)} of {len(found)} differ, {len(found) - len(different)} are equal bit for bit"
        )
        return EXIT_DIFFERENT
    if args.all:
        console.print(_difference_table(found))
    console.print(f"all {len(found)} are equal bit for bit")
    return 0


def _difference_table(items: list[Difference]) -> Any:
    table = _table("name", ">max |a−b|", ">relative", ">rows only in A", ">only in B", "")
    for item in items:
        numbers = (f"{item.max_abs:.3g}", f"{item.max_rel:.3g}") if item.max_abs else ("", "")
        rows = (f"{count:,}" if count else "" for count in (item.only_first, item.only_second))
        table.add_row(_plain(item.name), *numbers, *rows, _plain("equal" if item.equal else item.note))
    return table


def _verify(args: argparse.Namespace, console: Console) -> int:
    from recgrad.training.checkpoint import CheckpointManager, resolve_checkpoint, verify_checkpoint

    _require_folder(args.path)
    manager = CheckpointManager(args.path)
    paths = [manager.path(step) for step in manager.steps()] or [resolve_checkpoint(args.path)]
    damaged = 0
    for path in paths:
        try:
            manifest = verify_checkpoint(path)
        except CheckpointError as error:
            damaged += 1
            console.print(_plain(f"damaged  {error}"))
        else:
            files = len(manifest.files) + 1
            console.print(_plain(f"whole    {path}: {files} files, {_size(manifest.num_bytes)}"))
    return EXIT_DAMAGED if damaged else 0


def _require_folder(path: Path) -> None:
    if not path.is_dir():
        raise CheckpointError(
            f"{path}{whole_path(path)}: is a file; name the folder of a checkpoint or a model_dir"
            if path.exists()
            else f"{path}: there is no such folder{whole_path(path)}; check the path"
        )


def _arrays(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """The arrays in a tree, by path."""
    if hasattr(value, "nbytes") and hasattr(value, "shape"):
        return [(path, value)]
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, (list, tuple))
        else ()
    )
    found = []
    for key, item in items:
        found += _arrays(item, f"{path}/{key}" if path else str(key))
    return found


def _table(*columns: str) -> Any:
    """An empty table; columns that begin with > are set right."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for column in columns:
        right = column.startswith(">")
        table.add_column(column.removeprefix(">"), justify="right" if right else "left", overflow="fold")
    return table


def _filled(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    """A table of these rows."""
    table = _table(*columns)
    for row in rows:
        table.add_row(*map(_plain, row))
    return table


def _plain(text: str) -> Any:
    """Text that is neither markup nor control codes, whatever a checkpoint calls its tables."""
    from rich.text import Text

    return Text(printable(text))


def _size(num_bytes: int) -> str:
    value = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"
