"""The public API: what `dir` shows is there, is typed, is on docs/api.md, and costs nothing to import."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import recgrad
from recgrad import public_names
from recgrad.synth import write_synth

PAGE = Path(__file__).resolve().parents[1] / "docs" / "api.md"
TEXT = PAGE.read_text(encoding="utf-8")
LAZY = [
    "recgrad",
    "recgrad.losses",
    "recgrad.metrics",
    "recgrad.models",
    "recgrad.optim",
    "recgrad.optim.schedules",
    "recgrad.optim.sparse",
]
PUBLIC = [
    *LAZY,
    "recgrad.config",
    "recgrad.data",
    "recgrad.optim.dense",
    "recgrad.training.checkpoint",
]


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_is_there_and_on_the_page(name: str) -> None:
    module = importlib.import_module(name)
    assert set(module.__all__) <= set(dir(module))
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.S)
    words = set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", prose))))
    for public in module.__all__:
        assert getattr(module, public) is not None
        # The classes of components are on the page of their kind, as `recgrad list` shows them.
        assert public in getattr(module, "HOMES", {}) or public in words, (
            f"{name}.{public} is not on docs/api.md"
        )
    assert f"`{name}" in TEXT or f"## {name}\n" in TEXT


@pytest.mark.parametrize("name", LAZY)
def test_dir_shows_the_public_names(name: str) -> None:
    module = importlib.import_module(name)
    assert dir(module) == sorted(module.__all__)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        module.nothing  # noqa: B018


@pytest.mark.parametrize("name", LAZY)
def test_type_checkers_see_every_public_name(name: str) -> None:
    """Each is imported where type checkers look, or made in the file; `__getattr__` is hidden from them."""
    path = importlib.import_module(name).__file__
    assert path is not None
    tree = ast.parse(Path(path).read_text())
    seen: set[str] = set()
    for node in tree.body:
        hidden = isinstance(node, ast.If) and ast.unparse(node.test) == "not TYPE_CHECKING"
        body = node.body if isinstance(node, ast.If) and not hidden else [] if hidden else [node]
        for part in body:
            seen |= _names(part)
    assert set(recgrad_names(name)) <= seen
    assert "__getattr__" not in seen


def recgrad_names(name: str) -> list[str]:
    return list(importlib.import_module(name).__all__)


def _names(node: ast.stmt) -> set[str]:
    """What a statement binds."""
    if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
        return set(importlib.import_module(str(node.module)).HOMES)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {alias.asname or alias.name for alias in node.names}
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return {node.name}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    return {target.id for target in targets if isinstance(target, ast.Name)}


@pytest.mark.parametrize("package", public_names.PACKAGES)
def test_the_lists_of_public_classes_are_up_to_date(package: str) -> None:
    """A new loss, model or schedule is importable from its package, and type checkers know it."""
    text = public_names.path_of(package).read_text()
    assert text == public_names.text_of(package), "run `make names`"


def test_the_page_has_the_arguments_of_the_functions() -> None:
    rows = dict(re.findall(r"^\| `(\w+)\((.*?)\)`", TEXT, re.M))
    for name in recgrad.__all__:
        found: Any = getattr(recgrad, name)
        if inspect.isfunction(found):
            written = [word for word in re.split(r"[ ,*]+", rows[name]) if word]
            assert written == list(inspect.signature(found).parameters), name


def test_the_page_has_the_fields_of_the_result() -> None:
    (row,) = re.findall(r"^\| `TrainResult` \|(.*)$", TEXT, re.M)
    fields = set(recgrad.TrainResult.__dataclass_fields__)
    assert set(re.findall(r"`(\w+)", row)) == fields | {"describe"}


def test_importing_the_package_loads_nothing() -> None:
    """Neither torch nor the config language: a name loads what it needs when it is used."""
    code = (
        "import sys; before = set(sys.modules); import recgrad; dir(recgrad); "
        "heavy = {'torch', 'numpy', 'google', 'numba', 'pyarrow', 'rich', 'pandas'}; "
        "assert not heavy & {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "own = sorted(name for name in sys.modules if name.startswith('recgrad.')); "
        "assert own == ['recgrad.lazy', 'recgrad.version'], own; "
        "recgrad.RecgradError; assert 'torch' not in sys.modules; "
        "recgrad.load_config; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_snippets_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_synth(tmp_path / "data", 3_000, eval_rows=1_000)
    names: dict[str, Any] = {}
    for code in re.findall(r"```python\n(.*?)```", TEXT, re.S):
        exec(compile(code, str(PAGE), "exec"), names)
    assert names["rows"] == 1_000
    assert names["page"].name == "report.html"
    assert names["value"].shape == ()
    assert max(names["rates"]) == 0.001
