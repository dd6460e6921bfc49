"""The checks before a run: the config against itself, against this build, and against the data."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recgrad.config import LegacyWarning, PipelineConfig, edit_config, load_with_locations
from recgrad.config.check import Report, check_config
from recgrad.data.check import check_data
from recgrad.data.loader import build_loader
from recgrad.errors import Problem, RecgradError
from recgrad.training.assembly import features_of
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
    if not sample_rows or report.problems:
        return report
    try:
        return _check_with_data(config, sample_rows, report)
    except RecgradError as error:
        return Report([Problem("data", str(error))], report.hints)


def _check_with_data(config: PipelineConfig, sample_rows: int, report: Report) -> Report:
    """The report with what the data show: bad columns and rows, and hints that depend on their number."""
    features = features_of(config)
    problems = check_data(config, features, sample_rows=sample_rows)
    if problems:
        return Report(problems, report.hints)
    loader = build_loader(config, config.train_input_path, features=features, training=True)
    counted = check_config(config, available=available(), rows=loader.num_rows)
    known = {hint.what for hint in report.hints}
    return Report((), [*report.hints, *(hint for hint in counted.hints if hint.what not in known)])
