"""The config language: the schema, loading and editing."""

from __future__ import annotations

from importlib import import_module
from typing import Any

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
    "chosen",
    "edit_config",
    "load_config",
    "load_with_locations",
    "save_config",
    "struct_to_dict",
    "to_kwargs",
]


def __getattr__(name: str) -> Any:
    if name not in ("Report", "check_config", "check_rules"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # The check asks the components themselves, so it lives above them; users import it from here as well.
    return getattr(import_module("recgrad.check"), name)
