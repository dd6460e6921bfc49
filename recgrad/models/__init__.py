"""Models, one file each: the classes, `MODELS`, which lists them, and `build_model`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recgrad.lazy import lazy_names
from recgrad.models._public import HOMES

__all__ = [*HOMES, "MODELS", "Model", "build_model"]

if TYPE_CHECKING:
    from recgrad.models._public import *  # noqa: F403
    from recgrad.models.base import MODELS, Model
    from recgrad.models.build import build_model
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        __all__,
        {
            **HOMES,
            "MODELS": "recgrad.models.base",
            "Model": "recgrad.models.base",
            "build_model": "recgrad.models.build",
        },
    )
