"""What is said where several processes cannot have their tables."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from recgrad.config import PipelineConfig
from recgrad.errors import RecgradError
from recgrad.training import conditions
from recgrad.training.assembly import sharded_engine

ENGINE = "recgrad.embedding.sharded.engine"


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (ImportError("No module named 'torchrec'"), "install it with: pip install fbgemm-gpu-cpu"),
        (
            OSError("Could not load this library: fbgemm_gpu_py.so"),
            f"does not load with torch {torch.__version__} (torchrec 1.7.0: Could not load this library",
        ),
    ],
)
def test_a_torchrec_that_cannot_be_loaded_is_told_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, error: Exception, remedy: str
) -> None:
    class Broken:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == ENGINE:
                raise error

    monkeypatch.delitem(sys.modules, ENGINE, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    monkeypatch.setattr(conditions, "_installed_version", {"torchrec": "1.7.0"}.get)
    with pytest.raises(RecgradError) as raised:
        sharded_engine(PipelineConfig(), [], SimpleNamespace(distributed=True))  # type: ignore[arg-type]
    assert remedy in str(raised.value)
