"""The notebooks run from top to bottom, and what they show is what they give today."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
pytestmark = pytest.mark.slow


def runner() -> ModuleType:
    spec = importlib.util.spec_from_file_location("notebooks", ROOT / "website" / "notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def kinds(cell: Any) -> list[set[str]]:
    """What kinds of output a cell gives: streams, tables, pictures."""
    return [set(output.get("data", {"stream": ""})) for output in cell.get("outputs", [])]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_runs_and_gives_what_it_shows(path: Path) -> None:
    kept = json.loads(path.read_text())
    ran = runner().execute(path)
    assert len(NOTEBOOKS) == 2
    for before, now in zip(kept["cells"], ran.cells, strict=True):
        assert kinds(before) == kinds(now), "".join(before["source"])
    text = json.dumps(ran.cells)
    scores = [
        float(found)
        for found in re.findall(r"'auc': ([\d.]+)|catalogue_recall@20 +([\d.]+)", text)
        for found in found
        if found
    ]
    assert scores
    assert min(scores) > (0.7 if path.stem == "ranking" else 0.4)
