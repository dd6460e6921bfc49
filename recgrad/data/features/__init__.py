"""Feature kinds: how columns become ids and floats, and what models see of it."""

from recgrad.data.features.base import Feature
from recgrad.data.features.build import build_features
from recgrad.data.features.registry import FEATURES
from recgrad.data.features.spec import FeatureSpec, Kind

__all__ = ["FEATURES", "Feature", "FeatureSpec", "Kind", "build_features"]
