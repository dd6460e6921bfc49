"""Flags that several commands share: which config, which edits, which paths."""

from __future__ import annotations

import argparse
import logging
from typing import Any


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """The config file and the flags that change it before use."""
    parser.add_argument(
        "config", metavar="CONFIG", nargs="?", help="pipeline config, text or JSON, or the model_dir of a run"
    )
    parser.add_argument("--pipeline-config-path", metavar="CONFIG", help="the same, as a flag")
    parser.add_argument(
        "--edit-config-json",
        metavar="JSON",
        help="changes to the config, such as '{\"data_config.batch_size\": 512}'",
    )
    add_custom_code_argument(parser)


def add_custom_code_argument(parser: argparse.ArgumentParser) -> None:
    """Whether a config may bring code of its own."""
    parser.add_argument(
        "--no-custom-code",
        action="store_true",
        help="refuse a config that names classes to import (class_path, activations)",
    )


def add_device_argument(parser: argparse.ArgumentParser) -> None:
    """Where the model computes; `device_of` reads it."""
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        help="where the dense half computes (default: auto: on GPUs where each process can have one)",
    )


def add_threads_argument(parser: argparse.ArgumentParser, whose: str = "") -> None:
    """How many threads to compute with; `recgrad.openmp.choose_threads` decides where it is not given."""
    default = "OMP_NUM_THREADS, else the cores that there are"
    parser.add_argument("--num-threads", type=int, metavar="N", help=f"{whose}(default: {default})")


def add_raw_scores_argument(parser: argparse.ArgumentParser) -> None:
    """Whether a stored calibration is left out."""
    parser.add_argument(
        "--raw-scores",
        action="store_true",
        help="leave out the calibration that `recgrad calibrate` stored with the model",
    )


def add_verbose_argument(parser: argparse.ArgumentParser) -> None:
    """Whether to say more; `speak_up` reads it."""
    parser.add_argument(
        "--verbose", action="store_true", help="also show which optimizer each dense parameter has"
    )


def speak_up(args: argparse.Namespace) -> None:
    """Show messages of the level DEBUG as well, where the line asks for it."""
    if args.verbose:
        logging.getLogger("recgrad").setLevel(logging.DEBUG)


def device_of(args: argparse.Namespace) -> str:
    """The device that the line asks for; unless asked it is not handed on to the processes of a run."""
    return str(args.device or "auto")


def config_path(args: argparse.Namespace, parser_name: str) -> str:
    """The config that the line names, by position or by flag."""
    from recgrad.errors import RecgradError

    given = [path for path in (args.config, args.pipeline_config_path) if path]
    if len(given) != 1:
        raise RecgradError(f"recgrad {parser_name}: name one config file, got {len(given)}")
    return str(given[0])


def loaded_config(args: argparse.Namespace, parser_name: str) -> Any:
    """The config with its edits applied, and with defaults and patterns written out."""
    from recgrad.config.effective import effective_config

    path = config_path(args, parser_name)
    config, _ = effective_config(path, args.edit_config_json, custom_code=not args.no_custom_code)
    return config
