"""The Recgrad side of each "coming from" page is a sound config."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from recgrad.check import check_config
from recgrad.config import load_config

PAGES = sorted((Path(__file__).resolve().parents[1] / "docs" / "coming_from").glob("*.md"))


def configs() -> list[tuple[str, str]]:
    """Every config of the pages, with its name."""
    return [
        (f"{page.stem}: {title}", text)
        for page in PAGES
        for title, text in re.findall(r"```protobuf title=\"(.*?)\"\n(.*?)```", page.read_text(), re.S)
    ]


def test_every_page_has_a_config() -> None:
    assert {name.partition(":")[0] for name, _ in configs()} == {page.stem for page in PAGES}
    assert len(PAGES) >= 4


@pytest.mark.parametrize("text", [text for _, text in configs()], ids=[name for name, _ in configs()])
def test_the_config_is_sound(text: str, tmp_path: Path) -> None:
    path = tmp_path / "page.config"
    path.write_text(text)
    report = check_config(load_config(path))
    assert report.problems == ()
    assert report.hints == ()
