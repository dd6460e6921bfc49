"""Registries: names once, found by themselves, unknown ones with the nearest."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from recgrad.errors import RecgradError, nearest
from recgrad.registry import Registry, UnknownNameError, import_object


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = "zoo_" + re.sub(r"\W", "_", tmp_path.name)
    folder = tmp_path / name
    folder.mkdir()
    (folder / "__init__.py").write_text(
        f"from recgrad.registry import Registry\nTHINGS = Registry('thing', '{name}')\n"
    )
    (folder / "cat.py").write_text(
        f"from {name} import THINGS\n@THINGS.register('cat')\nclass Cat:\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_a_new_file_is_found_without_a_list(package: str) -> None:
    things: Registry[type] = import_object(f"{package}.THINGS")
    assert list(things) == ["cat"]
    assert things["cat"].__name__ == "Cat"
    assert "cat" in things
    assert len(things) == 1


def test_an_unknown_name_suggests_the_nearest(package: str) -> None:
    things: Registry[type] = import_object(f"{package}.THINGS")
    with pytest.raises(UnknownNameError) as caught:
        things["cut"]
    assert str(caught.value) == "no thing 'cut'; did you mean 'cat'?"


def test_registering_twice_raises(package: str) -> None:
    things: Registry[type] = import_object(f"{package}.THINGS")
    assert things["cat"]
    with pytest.raises(ValueError, match="thing 'cat' is registered twice"):
        things.register("cat")(int)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("Optimizer", "has no module"),
        ("no_such_package.Thing", "cannot import 'no_such_package'"),
        ("collections.OrderedDct", "has no 'OrderedDct'; did you mean 'OrderedDict'"),
    ],
)
def test_class_paths_that_lead_nowhere(path: str, message: str) -> None:
    with pytest.raises(RecgradError, match=message):
        import_object(path)


def test_nearest_stays_silent_when_nothing_is_near() -> None:
    assert nearest("zzz", ["auc", "log_loss"]) == ""


def test_files_with_an_underscore_hold_no_entries(package: str, tmp_path: Path) -> None:
    (tmp_path / package / "_heavy.py").write_text("raise RuntimeError('imported')\n")
    assert list(import_object(f"{package}.THINGS")) == ["cat"]
