"""What the front page shows is what the check accepts."""

from __future__ import annotations

import re
from pathlib import Path

from recgrad.config import load_config
from recgrad.config.check import check_config

ROOT = Path(__file__).resolve().parents[1]


def test_the_config_of_the_readme_is_sound(tmp_path: Path) -> None:
    blocks = (ROOT / "README.md").read_text().split("```")[1::2]
    (config,) = [block for block in blocks if block.startswith("\n") and "model_config {" in block]
    (tmp_path / "readme.config").write_text(config)
    assert check_config(load_config(tmp_path / "readme.config")).problems == ()


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([\w./-]+\.(?:md|py|config))", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
