"""From files to batches."""

from recgrad.data.batch import Batch, JaggedDense, KeyedDense, KeyedJagged, Origin
from recgrad.data.features.build import build_features
from recgrad.data.features.spec import FeatureSpec, Kind
from recgrad.data.loader import Loader, build_loader
from recgrad.data.position import Position, join_positions

__all__ = [
    "Batch",
    "FeatureSpec",
    "JaggedDense",
    "KeyedDense",
    "KeyedJagged",
    "Kind",
    "Loader",
    "Origin",
    "Position",
    "build_features",
    "build_loader",
    "join_positions",
]
