"""The docs as a site: built strictly, whole, and without anything from elsewhere."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pyarrow.parquet as pq
import pytest

import recgrad
from recgrad.cli.command import COMMANDS
from recgrad.cli.main import main
from recgrad.synth import shop_log

pytest.importorskip("mkdocs")
pytest.importorskip("material")
pytest.importorskip("mkdocstrings")

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site as `make docs` builds it, with one page more that no navigation names."""
    out = tmp_path_factory.mktemp("site")
    docs = out.with_name("docs")
    shutil.copytree(ROOT / "docs", docs)
    (docs / "just_written.md").write_text("# Just written\n\nSee [status.md](status.md).\n")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "RECGRAD_DOCS": str(docs)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def test_every_page_is_there_and_can_be_reached(site: Path) -> None:
    menu = (site / "index.html").read_text()
    pages = [path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")]
    pages += [Path("just_written.html")]
    pages += [Path("reference/commands") / f"{name}.html" for name in COMMANDS]
    assert len(pages) > 50
    assert [str(page) for page in pages if not (site / page).is_file()] == []
    assert [str(page) for page in pages if f'href="{page.as_posix()}"' not in menu] == []


def test_nothing_comes_from_elsewhere(site: Path) -> None:
    """Links may lead out; scripts, styles, fonts and pictures may not."""
    fetched = re.compile(
        r"<(?:script|img|iframe|source)[^>]*\ssrc=\"?(?:https?:)?//|<link[^>]*\shref=\"?(?:https?:)?//"
    )
    assert [page.name for page in site.rglob("*.html") if fetched.search(page.read_text())] == []


def test_search_finds_prose_docstrings_and_settings(site: Path) -> None:
    entries = json.loads((site / "search" / "search_index.json").read_text())["docs"]

    def pages_with(words: str) -> set[str]:
        return {entry["location"].partition("#")[0] for entry in entries if words in entry["text"]}

    assert "serving.html" in pages_with("Dockerfile")
    assert "reference/schema.html" in pages_with("enable_global_grad_clip")
    first_line = str(recgrad.train.__doc__).partition("\n")[0]
    assert "reference/recgrad.html" in pages_with(first_line[:40])


def test_the_reference_has_every_public_name(site: Path) -> None:
    for package in ("recgrad", "recgrad.losses", "recgrad.optim.schedules"):
        module = recgrad if package == "recgrad" else __import__(package, fromlist=["__all__"])
        page = (site / "reference" / f"{package}.html").read_text()
        text = re.sub(r"<[^>]+>", "", page)
        assert [name for name in module.__all__ if name.strip("_") not in text] == []


def test_the_gallery_shows_every_picture_with_its_commands() -> None:
    page = (ROOT / "docs" / "gallery.md").read_text()
    for picture in pictures().PICTURES:
        assert f"assets/gallery/{picture.name}.png" in page, picture.name
        assert "\n".join(picture.commands) in page, picture.name
        size = (ROOT / "docs/assets/gallery" / f"{picture.name}.png").stat().st_size
        assert 2_000 < size < 200_000, picture.name
    assert "\n".join(pictures().BEFORE) in page


def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", ROOT / "website" / "pictures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pictures"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_the_front_page_shows_what_the_two_commands_print(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shop = shop_log(40_000)
    pq.write_table(shop.log, "log.parquet", row_group_size=10_000)
    page = (ROOT / "docs" / "index.md").read_text()
    (block,) = re.findall(r"```console\n(.*?)```", page, re.S)
    first, second = re.findall(r"^\$ recgrad (.*)\n((?:(?!\$).*\n)*)", block, re.M)
    assert main(first[0].split()) == 0
    printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines())
    assert printed.strip() == first[1].strip()
    assert main(second[0].split()) == 0
    shown, now = (
        float(re.findall(r"\bauc ([\d.]+)", text)[0]) for text in (second[1], capsys.readouterr().out)
    )
    assert now == pytest.approx(shown, abs=0.01)  # other processors round otherwise
    assert f"{shop.best_auc:.3f} on these clicks" in page
