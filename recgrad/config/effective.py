"""The config as it will run: a file, and what the command line changes of it. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recgrad.config.class_paths import refuse_custom_code
from recgrad.config.edit import edit_config
from recgrad.config.expand import expand_config
from recgrad.config.load import load_with_locations
from recgrad.config.locations import Locations
from recgrad.config.proto.pipeline_pb2 import PipelineConfig

ConfigSource = str | Path | Mapping[str, Any] | PipelineConfig


def effective_config(
    source: ConfigSource,
    edits: str | Mapping[str, Any] | None = None,
    overrides: Mapping[str, str | None] | None = None,
    *,
    custom_code: bool = True,
) -> tuple[PipelineConfig, Locations]:
    """The config with all that the command line changes, and the lines of its fields.

    Args:
        source: as for `load_config`.
        edits: as for `edit_config`.
        overrides: fields of the config itself, where they are not None.
        custom_code: False refuses classes that the config names by import path.
    """
    loaded = load_with_locations(source)
    loaded.warn(stacklevel=4)
    config = loaded.message
    if edits:
        config = edit_config(config, edits, locations=loaded.locations)
    for field, value in (overrides or {}).items():
        if value is not None:
            setattr(config, field, value)
            loaded.locations.forget(field)
    if not custom_code:
        refuse_custom_code(config, loaded.locations)
    return expand_config(config, loaded.locations), loaded.locations
