"""Fields of older configs that have been replaced."""

from __future__ import annotations

from recgrad.config.locations import Locations
from recgrad.config.proto.data_pb2 import FG_DAG, FG_NONE, FgMode
from recgrad.config.proto.pipeline_pb2 import PipelineConfig
from recgrad.errors import ConfigError, Problem

PATH = "data_config.fg_encoded"


class LegacyWarning(UserWarning):
    """A config uses a field that has been replaced; what it meant still holds."""


def replace_fg_encoded(config: PipelineConfig, locations: Locations) -> str | None:
    """Put `fg_mode` in the place of `fg_encoded`; returns the warning to show, if any.

    true is FG_NONE: the data holds encoded features. false is FG_DAG: features are encoded
    while reading.

    Raises:
        ConfigError: fg_mode is set too, and says the opposite.
    """
    if not config.HasField("data_config") or not config.data_config.HasField("fg_encoded"):
        return None
    data = config.data_config
    encoded = "true" if data.fg_encoded else "false"
    if not data.HasField("fg_mode"):
        data.fg_mode = FG_NONE if data.fg_encoded else FG_DAG
    mode = FgMode.Name(data.fg_mode)
    if data.fg_encoded != (data.fg_mode == FG_NONE):
        what = f"{encoded} contradicts fg_mode: {mode}; keep fg_mode alone"
        raise ConfigError([Problem(locations.where(PATH), what)])
    data.ClearField("fg_encoded")
    return f"{locations.where(PATH)}: is replaced by fg_mode; read as fg_mode: {mode}"
