"""From files to batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recgrad.lazy import lazy_names

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

if TYPE_CHECKING:
    from recgrad.data.batch import Batch, JaggedDense, KeyedDense, KeyedJagged, Origin
    from recgrad.data.features.build import build_features
    from recgrad.data.features.spec import FeatureSpec, Kind
    from recgrad.data.loader import Loader, build_loader
    from recgrad.data.position import Position, join_positions
else:
    # A served model encodes rows without torch, which batches and the loader are made of.
    __getattr__, __dir__ = lazy_names(
        __name__,
        __all__,
        {
            **dict.fromkeys(
                ("Batch", "JaggedDense", "KeyedDense", "KeyedJagged", "Origin"), "recgrad.data.batch"
            ),
            **dict.fromkeys(("FeatureSpec", "Kind"), "recgrad.data.features.spec"),
            **dict.fromkeys(("Loader", "build_loader"), "recgrad.data.loader"),
            **dict.fromkeys(("Position", "join_positions"), "recgrad.data.position"),
            "build_features": "recgrad.data.features.build",
        },
    )
