"""What is said of kernels that are compiled, and of those that were."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from numba import njit, types

from recgrad.kernels import compile as kernels
from recgrad.kernels.compile import compiled_with

SIGNATURE = types.float64(types.float64)


def calling(rule: Any) -> Any:
    def kernel(value: float) -> float:
        return rule(value)

    return kernel


@njit
def twice(value: float) -> float:
    return 2 * value


@pytest.fixture
def said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> pytest.LogCaptureFixture:
    """What is logged with a cache directory of one's own, where nothing is too quick to be told."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(kernels, "_NOTICEABLE_SECONDS", 0.0)
    compiled_with.cache_clear()
    monkeypatch.setattr(logging.getLogger("recgrad"), "propagate", True)
    caplog.set_level("INFO", logger="recgrad")
    return caplog


def test_only_a_kernel_that_was_compiled_is_called_so(said: pytest.LogCaptureFixture) -> None:
    assert compiled_with(calling, twice, SIGNATURE).ctypes(3.0) == 6.0
    assert "it is kept for the next run" in said.text
    said.clear()
    compiled_with.cache_clear()  # as another process would begin
    assert compiled_with(calling, twice, SIGNATURE).ctypes(3.0) == 6.0
    assert said.text == ""


def test_a_kernel_of_a_local_rule_is_not_said_to_be_kept(said: pytest.LogCaptureFixture) -> None:
    @njit
    def thrice(value: float) -> float:
        return 3 * value

    assert compiled_with(calling, thrice, SIGNATURE).ctypes(3.0) == 9.0
    assert "compiled the" in said.text
    assert "for the next run" not in said.text
