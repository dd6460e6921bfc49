"""Recgrad trains recommendation models from one config file.

    import recgrad
    result = recgrad.train("deepfm.config", model_dir="out")

What stands here is imported when it is first used, so that importing the package costs nothing and
changes nothing. docs/api.md has the whole of it on one page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recgrad.lazy import lazy_names
from recgrad.version import __version__

__all__ = [
    "CheckpointError",
    "Comparison",
    "ConfigError",
    "DataError",
    "LoadedModel",
    "PipelineConfig",
    "RecgradError",
    "TrainResult",
    "__version__",
    "check_config",
    "compare",
    "config",
    "data",
    "edit_config",
    "evaluate",
    "export_model",
    "load_config",
    "load_model",
    "losses",
    "metrics",
    "models",
    "optim",
    "predict",
    "save_config",
    "train",
    "write_report",
]

if TYPE_CHECKING:
    from recgrad import config, data, losses, metrics, models, optim
    from recgrad.check import check_config
    from recgrad.config import PipelineConfig, edit_config, load_config, save_config
    from recgrad.errors import CheckpointError, ConfigError, DataError, RecgradError
    from recgrad.export.bundle import export_model
    from recgrad.export.model import LoadedModel, load_model
    from recgrad.export.predict import predict
    from recgrad.report.comparison import Comparison, compare
    from recgrad.report.page import write_report
    from recgrad.training.run import evaluate, train
    from recgrad.training.state import TrainResult
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        __all__,
        {
            **{
                name: f"recgrad.{name}" for name in ("config", "data", "losses", "metrics", "models", "optim")
            },
            "CheckpointError": "recgrad.errors",
            "Comparison": "recgrad.report.comparison",
            "ConfigError": "recgrad.errors",
            "DataError": "recgrad.errors",
            "PipelineConfig": "recgrad.config",
            "RecgradError": "recgrad.errors",
            "TrainResult": "recgrad.training.state",
            "check_config": "recgrad.check",
            "compare": "recgrad.report.comparison",
            "edit_config": "recgrad.config",
            "evaluate": "recgrad.training.run",
            "LoadedModel": "recgrad.export.model",
            "export_model": "recgrad.export.bundle",
            "load_config": "recgrad.config",
            "load_model": "recgrad.export.model",
            "predict": "recgrad.export.predict",
            "save_config": "recgrad.config",
            "train": "recgrad.training.run",
            "write_report": "recgrad.report.page",
        },
    )
