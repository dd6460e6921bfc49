from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recgrad.config import Locations


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str | bytes], Path]:
    """Writes a file called x.config."""

    def write(text: str | bytes) -> Path:
        path = tmp_path / "x.config"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


@pytest.fixture
def nowhere() -> Locations:
    """Locations of a config that is in no file."""
    return Locations()
