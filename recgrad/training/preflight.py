"""The checks before a run: the config against itself, against this build, and against the data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from recgrad.check import Report, check_config
from recgrad.config import PipelineConfig, edit_config, load_with_locations
from recgrad.config.effective import ConfigSource, effective_config
from recgrad.config.locations import Locations
from recgrad.data.check import check_data
from recgrad.data.features.build import features_of
from recgrad.data.loader import build_loader
from recgrad.errors import ConfigError, Problem, RecgradError
from recgrad.models.targets import find_targets
from recgrad.training.processes import read_environment

__all__ = [
    "ConfigSource",
    "check_effective",
    "check_everything",
    "effective_config",
    "meeting_timeout",
    "prepare_config",
]


def prepare_config(
    source: ConfigSource,
    *,
    edit_config_json: str | Mapping[str, Any] | None = None,
    train_input_path: str | None = None,
    eval_input_path: str | None = None,
    model_dir: str | Path | None = None,
    fine_tune_checkpoint: str | None = None,
    ranks: int | None = None,
    custom_code: bool = True,
) -> tuple[PipelineConfig, Report]:
    """The config as it will run, with what was found wrong with it; `ranks` as for `check_config`.

    Without `custom_code`, a config that names classes by import path is refused before any is imported.
    """
    config, locations = effective_config(
        source,
        edit_config_json,
        {
            "train_input_path": train_input_path,
            "eval_input_path": eval_input_path,
            "model_dir": None if model_dir is None else str(model_dir),
        },
        custom_code=custom_code,
    )
    if fine_tune_checkpoint is not None:
        config.train_config.fine_tune_checkpoint = fine_tune_checkpoint
        locations.forget("train_config.fine_tune_checkpoint")
    return config, check_config(config, locations=locations, ranks=ranks, files=True)


def meeting_timeout(source: ConfigSource, edits: str | Mapping[str, Any] | None) -> float:
    """How long ranks wait for each other to come, which they do before the config is checked.

    With a config that cannot be read or has no sound value it is the default; the error comes later, once.
    """
    default = PipelineConfig().train_config.process_timeout_secs
    if not read_environment().distributed:
        return default
    try:
        config = load_with_locations(source).message
        if edits:
            config = edit_config(config, edits)
    except RecgradError:
        return default
    found = config.train_config.process_timeout_secs
    return found if found >= 1 else default


def check_everything(
    source: ConfigSource,
    *,
    edit_config_json: str | Mapping[str, Any] | None = None,
    train_input_path: str | None = None,
    eval_input_path: str | None = None,
    sample_rows: int = 0,
    custom_code: bool = True,
) -> Report:
    """What is wrong with a config as it would run; data are looked at when `sample_rows` is above 0.

    `custom_code` is as for `prepare_config`.
    """
    config, locations = effective_config(
        source,
        edit_config_json,
        {"train_input_path": train_input_path, "eval_input_path": eval_input_path},
        custom_code=custom_code,
    )
    return check_effective(config, locations, sample_rows=sample_rows)


def check_effective(config: PipelineConfig, locations: Locations, *, sample_rows: int = 0) -> Report:
    """`check_everything` of what `effective_config` gives."""
    report = check_config(config, locations=locations, files=sample_rows > 0)
    if not sample_rows or report.problems:
        return report
    try:
        return _check_with_data(config, locations, sample_rows)
    except ConfigError as error:
        return replace(report, problems=_located(error.problems, locations))
    except RecgradError as error:
        return replace(report, problems=[Problem("", str(error))])


def _check_with_data(config: PipelineConfig, locations: Locations, sample_rows: int) -> Report:
    """What the data show: bad columns and rows, and hints that depend on their number."""
    features = features_of(config)
    targets = find_targets(config)
    problems = check_data(config, features, targets, sample_rows=sample_rows)
    rows = None
    if not problems:
        loader = build_loader(
            config, config.train_input_path, features=features, targets=targets, training=True
        )
        rows = loader.num_rows
    report = check_config(config, locations=locations, rows=rows)
    return replace(report, problems=[*report.problems, *_located(problems, locations)])


def _located(problems: Iterable[Problem], locations: Locations) -> list[Problem]:
    """The problems with the lines of the fields they are about, which stand for the data as well."""
    return [
        Problem(locations.where(problem.where), problem.what.removeprefix("data: ")) for problem in problems
    ]
