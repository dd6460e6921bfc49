"""The registry of feature kinds, by their names in `feature_configs`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recgrad.config.class_paths import names_class
from recgrad.config.messages import struct_to_dict
from recgrad.registry import Registry

if TYPE_CHECKING:
    from recgrad.data.features.base import Feature
    from recgrad.data.features.config import Setting

FEATURES: Registry[type[Feature]] = Registry("feature", "recgrad.data.features")


def build_kind(name: str, config: Any, setting: Setting) -> list[Feature]:
    """The features of a message: by the kind of its name, or by a class of the user's own that it names."""
    if not names_class(config.DESCRIPTOR):
        return FEATURES[name].build(config, setting)
    try:
        return [own_kind(config.class_path)(config, setting, **struct_to_dict(config.params))]
    except TypeError as error:
        raise ValueError(f"params: {error}") from error


def own_kind(class_path: str) -> type[Feature]:
    """The class of a feature kind of the user's own; those that are built in have messages of their own."""
    from recgrad.data.features.base import Feature

    found = FEATURES.resolve_subclass(class_path, Feature, "expressions, build_output and transform")
    if found.__module__.startswith(f"{FEATURES.package}."):
        raise ValueError(f"class_path: {class_path} is built in; name that kind itself")
    return found
