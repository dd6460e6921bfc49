"""`recgrad importance`: what each feature is worth to a model."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

from recgrad.cli.command import COMMANDS, Command, heavy_imports
from recgrad.cli.console import table_console
from recgrad.cli.run_flags import (
    add_custom_code_argument,
    add_device_argument,
    add_threads_argument,
    device_of,
)
from recgrad.terminal import printable, say

if TYPE_CHECKING:
    from pathlib import Path

    from recgrad.report.importance import Importance

MOST_LINES, MOST_METRICS = 50, 4


@COMMANDS.register("importance")
class ImportanceCommand(Command):
    """Tell what each feature is worth: how much the metrics lose when its values are shuffled.

    Writes importance.csv, .json and .png, and reduced.config, the config without the features that are worth
    nothing. Of models that find items, features of users are shuffled among rows, and those of items among
    the items that are compared: the catalogue of eval_config.catalogue, or sampled ones. Rates that
    variational_dropout has learned stand beside, where the config trains with it.
    """

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("model", metavar="MODEL", help="the model_dir of a run")
        parser.add_argument(
            "--data", metavar="PATH", required=True, help="rows with labels, or with items that users wanted"
        )
        parser.add_argument(
            "--groups",
            default="column",
            metavar="HOW",
            help="what is shuffled together: column (features that read the same columns), feature, model "
            "(feature groups), or 'name=a,b;other=c' (default: column); a sequence is always one",
        )
        parser.add_argument("--repeats", type=int, default=5, metavar="N", help="shuffles (default: 5)")
        parser.add_argument(
            "--rows", type=int, default=50_000, metavar="N", help="the first N rows (default: 50000)"
        )
        parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the shuffles (default: 0)")
        parser.add_argument("--metric", metavar="NAME", help="to order by (default: the config's first)")
        parser.add_argument("--top", type=int, metavar="N", help="what reduced.config keeps, at most")
        parser.add_argument(
            "--by",
            choices=("permutation", "dropout"),
            default="permutation",
            help="what reduced.config goes by (default: permutation)",
        )
        parser.add_argument("--out", metavar="DIR", help="(default: importance/ in the model_dir)")
        parser.add_argument("--checkpoint-path", metavar="PATH", help="a checkpoint, not the best or newest")
        parser.add_argument("--edit-config-json", metavar="JSON", help="changes to the config")
        add_custom_code_argument(parser)
        add_device_argument(parser)
        add_threads_argument(parser)

    def run(self, args: argparse.Namespace) -> int:
        from pathlib import Path

        from recgrad.training.signals import StopRequest

        with heavy_imports():
            from recgrad.report.importance import feature_importance
            from recgrad.report.importance_files import write_picture, write_tables
            from recgrad.training.hooks.console import evaluation_bar
            from recgrad.training.runtime import set_up_process

        set_up_process(args.num_threads)
        with StopRequest() as stop, evaluation_bar() as progress:
            found = feature_importance(
                args.model,
                args.data,
                groups=args.groups,
                repeats=args.repeats,
                rows=args.rows,
                seed=args.seed,
                metric=args.metric,
                checkpoint_path=args.checkpoint_path,
                edit_config_json=args.edit_config_json,
                device=device_of(args),
                custom_code=not args.no_custom_code,
                stop=stop,
                progress=progress,
            )
        _print(found)
        folder = Path(args.out) if args.out else Path(found.trained.config.model_dir) / "importance"
        folder.mkdir(parents=True, exist_ok=True)
        written = write_tables(folder, found)
        write_picture(folder / "importance.png", found)
        say(f"wrote {', '.join(map(str, written))} and {folder / 'importance.png'}")
        _reduce(found, folder, args)
        return 0


def _reduce(found: Importance, folder: Path, args: argparse.Namespace) -> None:
    from recgrad.config import save_config
    from recgrad.report.reduced import choose_dropped, reduced_config

    units = choose_dropped(found, top=args.top, by=args.by)
    if len(units) == len(found.worths):
        say("no feature is clearly worth anything on these rows, so no reduced config is written")
        return
    config, stay = reduced_config(found.trained.config, units)
    config.model_dir = f"{found.trained.config.model_dir.rstrip('/')}_reduced"
    path = folder / "reduced.config"
    save_config(config, path)
    gone = len(units) - len(stay)
    for unit in stay:
        say(f"{unit.name} stays, although it is worth little: the model cannot be built without it")
    kept = f"{len(found.worths) - gone} of {len(found.worths)}"
    say(f"wrote {path}, with {kept}; train with: recgrad train {path}")


def _print(found: Importance) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("shuffled")
    shown = list(found.metrics)[:MOST_METRICS]
    for name in shown:
        table.add_column(f"{name} loses", justify="right")
        table.add_column("±", justify="right")
    drops = any(worth.dropout is not None for worth in found.worths)
    if drops:
        table.add_column("dropout", justify="right")
    for worth in found.worths[:MOST_LINES]:
        cells = [worth.unit.name]
        for name in shown:
            deviation = worth.deviations[name]
            cells += [f"{worth.means[name]:.6f}", "" if math.isnan(deviation) else f"{deviation:.6f}"]
        if drops:
            cells.append("" if worth.dropout is None else f"{worth.dropout:.3f}")
        table.add_row(*(Text(printable(cell)) for cell in cells))
    table_console().print(table)
    if len(found.worths) > MOST_LINES:
        say(f"… and {len(found.worths) - MOST_LINES} more, in importance.csv")
    if more := list(found.metrics)[MOST_METRICS:]:
        say(f"{', '.join(more)}: in importance.csv")
    whole = ", ".join(f"{name} {value:.6f}" for name, value in found.metrics.items())
    say(f"of {whole}, on {found.rows:,} rows, {found.repeats} shuffles each")
