"""Recgrad trains recommendation models from one config file.

    import recgrad
    result = recgrad.train("deepfm.config", model_dir="out")

`train`, `evaluate`, `predict` and `load_config` are imported when they are first used, so
that importing the package costs nothing and changes nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from recgrad.version import __version__

if TYPE_CHECKING:
    from recgrad.config import load_config
    from recgrad.export.predict import predict
    from recgrad.training.run import TrainResult, evaluate, train

__all__ = ["TrainResult", "__version__", "evaluate", "load_config", "predict", "train"]

_HOMES = {
    "TrainResult": "recgrad.training.run",
    "evaluate": "recgrad.training.run",
    "load_config": "recgrad.config",
    "predict": "recgrad.export.predict",
    "train": "recgrad.training.run",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'recgrad' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)
