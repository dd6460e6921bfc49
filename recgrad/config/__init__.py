"""The config language: the schema, loading, editing and checking."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from recgrad.config.check import Report, check_rules
from recgrad.config.edit import edit_config
from recgrad.config.legacy import LegacyWarning
from recgrad.config.load import LoadedConfig, load_config, load_with_locations, save_config
from recgrad.config.locations import Locations
from recgrad.config.messages import chosen, struct_to_dict, to_kwargs
from recgrad.config.proto.pipeline_pb2 import PipelineConfig

__all__ = [
    "LegacyWarning",
    "LoadedConfig",
    "Locations",
    "PipelineConfig",
    "Report",
    "check_rules",
    "chosen",
    "edit_config",
    "load_config",
    "load_with_locations",
    "save_config",
    "struct_to_dict",
    "to_kwargs",
]


def __getattr__(name: str) -> Any:
    if name != "check_config":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # The whole check builds models, so it lives above them; users import it from here as well.
    return import_module("recgrad.check").check_config
