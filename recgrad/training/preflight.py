"""The checks before a run: the config against itself, against this build, and against the data."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recgrad.config import LegacyWarning, PipelineConfig, edit_config, load_with_locations
from recgrad.config.check import Report, check_config
from recgrad.errors import ConfigError, Problem, RecgradError
from recgrad.training.capabilities import available

ConfigSource = str | Path | Mapping[str, Any] | PipelineConfig


def prepare_config(
    source: ConfigSource,
    *,
    edit_config_json: str | Mapping[str, Any] | None = None,
    train_input_path: str | None = None,
    eval_input_path: str | None = None,
    model_dir: str | Path | None = None,
    fine_tune_checkpoint: str | None = None,
) -> tuple[PipelineConfig, Report]:
    """The config as it will run, with what was found wrong with it."""
    loaded = load_with_locations(source)
    for warning in loaded.warnings:
        warnings.warn(warning, LegacyWarning, stacklevel=2)
    config = loaded.message
    if edit_config_json:
        config = edit_config(config, edit_config_json, locations=loaded.locations)
    if train_input_path is not None:
        config.train_input_path = train_input_path
    if eval_input_path is not None:
        config.eval_input_path = eval_input_path
    if model_dir is not None:
        config.model_dir = str(model_dir)
    if fine_tune_checkpoint is not None:
        config.train_config.fine_tune_checkpoint = fine_tune_checkpoint
    return config, check_config(config, locations=loaded.locations, available=available())


def require_sound(report: Report) -> None:
    """Raise all problems at once."""
    if report.problems:
        raise ConfigError(report.problems)


def check_everything(
    source: ConfigSource,
    *,
    edit_config_json: str | Mapping[str, Any] | None = None,
    train_input_path: str | None = None,
    eval_input_path: str | None = None,
    sample_rows: int = 0,
) -> Report:
    """What `recgrad check` reports; data are looked at when `sample_rows` is above 0."""
    config, report = prepare_config(
        source,
        edit_config_json=edit_config_json,
        train_input_path=train_input_path,
        eval_input_path=eval_input_path,
    )
    if sample_rows and not report.problems:
        report = Report(problems=_check_data(config, sample_rows), hints=report.hints)
    return report


def _check_data(config: PipelineConfig, sample_rows: int) -> list[Problem]:
    from recgrad.data.check import check_data
    from recgrad.training.assembly import features_of

    try:
        return check_data(config, features_of(config), sample_rows=sample_rows)
    except RecgradError as error:
        return [Problem("data", str(error))]
