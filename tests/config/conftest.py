from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from recgrad.config import Locations, PipelineConfig, Report, check_config, edit_config, load_with_locations

DATA = Path(__file__).parent / "data"
EXAMPLES = sorted(path.stem for path in DATA.glob("*.config"))


@pytest.fixture
def example() -> Callable[[str], Path]:
    """The path of one of our example configs, by name."""
    return lambda name: DATA / f"{name}.config"


@pytest.fixture
def config() -> PipelineConfig:
    """A sound DeepFM config."""
    return load_with_locations(DATA / "deepfm_criteo.config").message


@pytest.fixture
def problems(config: PipelineConfig) -> Callable[..., list[str]]:
    """The problems of the DeepFM config, or of another example, after edits."""

    def check(edits: dict[str, object], base: str | None = None, **options: object) -> list[str]:
        message = config if base is None else load_with_locations(DATA / f"{base}.config").message
        report: Report = check_config(edit_config(message, edits), **options)  # type: ignore[arg-type]
        return [str(problem) for problem in report.problems]

    return check


@pytest.fixture
def hints(config: PipelineConfig) -> Callable[..., list[str]]:
    """The hints on the DeepFM config after edits; there must be no problems."""

    def check(edits: dict[str, object], **options: object) -> list[str]:
        report: Report = check_config(edit_config(config, edits), **options)  # type: ignore[arg-type]
        assert report.ok, report.problems
        return [str(hint) for hint in report.hints]

    return check


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
