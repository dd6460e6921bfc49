"""The registry of feature kinds, by their names in `feature_configs`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recgrad.registry import Registry

if TYPE_CHECKING:
    from recgrad.data.features.base import Feature

FEATURES: Registry[type[Feature]] = Registry("feature", "recgrad.data.features")
