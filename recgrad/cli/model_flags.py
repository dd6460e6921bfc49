"""Flags of the commands that take vectors from a trained model."""

from __future__ import annotations

import argparse
from typing import Any

from recgrad.cli.run_flags import add_custom_code_argument, add_threads_argument


def add_model_arguments(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """The model and which of its checkpoints."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        nargs="?" if optional else None,
        help="the model_dir of a run, a pipeline config, or a bundle of `recgrad export`",
    )
    parser.add_argument(
        "--checkpoint-path", metavar="PATH", help="a checkpoint, instead of the best or newest"
    )
    parser.add_argument("--edit-config-json", metavar="JSON", help="changes to the config")
    add_custom_code_argument(parser)
    add_threads_argument(parser)


def open_model(args: argparse.Namespace) -> Any:
    """The towers of the model that the line names, ready to compute."""
    from recgrad.export.towers import open_towers

    return open_towers(args.model, **_options(args))


def open_tree_model(args: argparse.Namespace, tree: Any) -> Any:
    """The model that the line names, ready to score nodes of a tree."""
    from recgrad.export.tree_search import open_nodes

    return open_nodes(args.model, tree, **_options(args))


def _options(args: argparse.Namespace) -> dict[str, Any]:
    """What the line says of the model; the process is made ready to compute."""
    from recgrad.export.towers import is_model_bundle
    from recgrad.openmp import choose_threads

    threads = choose_threads(args.num_threads)
    if not is_model_bundle(args.model):
        # Loads torch, which a bundle does without.
        from recgrad.training.runtime import set_up_process

        set_up_process(args.num_threads)
    return {
        "checkpoint_path": args.checkpoint_path,
        "edit_config_json": args.edit_config_json,
        "custom_code": not args.no_custom_code,
        "threads": threads,
    }


def open_index(place: str, table: str | None) -> Any:
    """An index: a folder, or the table of a database."""
    from recgrad.errors import RecgradError
    from recgrad.serving.index import Index
    from recgrad.serving.postgres import PREFIXES, TABLE, PostgresIndex

    if place.startswith(PREFIXES):
        return PostgresIndex(place, table or TABLE)
    if table is not None:
        raise RecgradError(f"--table: goes with an index in PostgreSQL, got the folder {place}")
    return Index(place)
