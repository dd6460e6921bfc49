"""Registries: names once, found by themselves, unknown ones with the nearest."""

from __future__ import annotations

import compileall
import importlib
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import recgrad.registry
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
        (
            "no_such_package.Thing",
            "cannot import 'no_such_package' .*; put the folder that it is in on PYTHONPATH",
        ),
        ("torch.no_such_part.Thing", "cannot import 'torch.no_such_part' .*; put the folder"),
        ("collections.OrderedDct", "has no 'OrderedDct'; did you mean 'OrderedDict'"),
    ],
)
def test_class_paths_that_lead_nowhere(path: str, message: str) -> None:
    with pytest.raises(RecgradError, match=message):
        import_object(path)


def test_a_class_path_whose_module_misses_another_says_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "needs_more.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        RecgradError, match=r"cannot import 'needs_more' \(No module named 'no_such_package'\)$"
    ):
        import_object("needs_more.Thing")


def test_nearest_stays_silent_when_nothing_is_near() -> None:
    assert nearest("zzz", ["auc", "log_loss"]) == ""


def test_files_with_an_underscore_hold_no_entries(package: str, tmp_path: Path) -> None:
    (tmp_path / package / "_heavy.py").write_text("raise RuntimeError('imported')\n")
    assert list(import_object(f"{package}.THINGS")) == ["cat"]


def modules_of(package: str) -> set[str]:
    """The modules of a package that are imported."""
    return {name.partition(".")[2] for name in sys.modules if name.startswith(f"{package}.")}


def write_module(folder: Path, name: str, text: str) -> None:
    (folder / f"{name}.py").write_text(f"from {folder.name} import THINGS\n{text}")


def test_names_are_known_without_an_import(package: str, tmp_path: Path) -> None:
    write_module(
        tmp_path / package, "dog", "@THINGS.register('dog')\n@THINGS.register('hound')\nclass Dog: ..."
    )
    write_module(tmp_path / package, "plain", "raise RuntimeError('holds nothing, so nobody imports it')")
    things: Registry[type] = import_object(f"{package}.THINGS")
    assert list(things) == ["cat", "dog", "hound"]
    assert len(things) == 3
    assert "dog" in things
    assert "cow" not in things
    with pytest.raises(UnknownNameError, match="did you mean 'hound'"):
        things["hund"]
    assert modules_of(package) == set()
    assert things["dog"] is things["hound"]
    assert modules_of(package) == {"dog"}
    assert [(name, thing.__name__) for name, thing in things.items()] == [
        ("cat", "Cat"),
        ("dog", "Dog"),
        ("hound", "Dog"),
    ]
    assert modules_of(package) == {"cat", "dog"}


DOG = "\n@THINGS.register('dog')  # or hound\nclass Dog: ..."


@pytest.mark.parametrize(
    "text",
    [
        "for name in ('cow', 'dog'):\n    THINGS.register(name)(int)",
        f"COW = 'cow'\n@THINGS.register(COW)\nclass Cow: ...{DOG}",
        "add = THINGS.register\n@add('cow')\nclass Cow: ...\n@add('dog')\nclass Dog: ...",
        f"if True:\n    @THINGS.register('cow')\n    class Cow: ...{DOG}",
        f"ZOO = THINGS\n@ZOO.register('cow')\nclass Cow: ...{DOG}",
        f"@THINGS.register(\n    'cow'\n)\nclass Cow: ...{DOG}",
        f"@THINGS.register('c' 'ow')\nclass Cow: ...{DOG}",
        f"@THINGS.register('c\\x6fw')\nclass Cow: ...{DOG}",
    ],
    ids=["loop", "variable", "bound method", "condition", "other name", "lines", "concatenation", "escape"],
)
def test_registrations_that_only_python_can_read_are_found(package: str, tmp_path: Path, text: str) -> None:
    write_module(tmp_path / package, "farm", text)
    things: Registry[type] = import_object(f"{package}.THINGS")
    assert list(things) == ["cat", "cow", "dog"]
    assert things["cow"]


def test_names_that_a_decorator_of_another_module_registers_are_found(package: str, tmp_path: Path) -> None:
    write_module(tmp_path / package, "base", "def big(name):\n    return THINGS.register(f'big_{name}')")
    write_module(tmp_path / package, "a_cow", f"from {package}.base import big\n@big('cow')\nclass Cow: ...")
    assert list(import_object(f"{package}.THINGS")) == ["big_cow", "cat"]


def test_two_registries_of_a_package_are_told_apart(package: str, tmp_path: Path) -> None:
    with (tmp_path / package / "__init__.py").open("a") as file:
        file.write(f"PLANTS = Registry('plant', '{package}')\n")
    (tmp_path / package / "oak.py").write_text(
        f"import {package} as zoo\n"
        "@zoo.PLANTS.register('oak')\n"
        "@zoo.THINGS.register('wood')\n"
        "class Oak: ...\n"
    )
    assert list(import_object(f"{package}.THINGS")) == ["cat", "wood"]
    assert list(import_object(f"{package}.PLANTS")) == ["oak"]
    assert modules_of(package) == set()


def test_a_name_that_two_modules_register_raises_without_an_import(package: str, tmp_path: Path) -> None:
    write_module(tmp_path / package, "tom", "@THINGS.register('cat')\nclass Tom: ...")
    with pytest.raises(ValueError, match="thing 'cat' is registered twice"):
        list(import_object(f"{package}.THINGS"))
    assert modules_of(package) == set()


def test_the_name_of_a_module_that_is_not_imported_is_taken(package: str) -> None:
    things: Registry[type] = import_object(f"{package}.THINGS")
    assert list(things) == ["cat"]
    with pytest.raises(ValueError, match="thing 'cat' is registered twice"):
        things.register("cat")(int)
    assert things["cat"].__name__ == "Cat"


def test_a_module_with_a_name_that_is_taken_raises(package: str) -> None:
    things: Registry[type] = import_object(f"{package}.THINGS")
    things.register("cat")(int)
    with pytest.raises(ValueError, match="thing 'cat' is registered twice"):
        list(things)


def test_what_the_text_only_seems_to_register_is_unknown(package: str, tmp_path: Path) -> None:
    write_module(tmp_path / package, "manual", "'''\n@THINGS.register('ghost')\n'''")
    things: Registry[type] = import_object(f"{package}.THINGS")
    with pytest.raises(UnknownNameError, match="no thing 'ghost'"):
        things["ghost"]
    assert [name for name, _ in things.items()] == list(things) == ["cat"]


def test_a_module_that_was_imported_already_is_not_imported_again(package: str) -> None:
    cat = import_object(f"{package}.cat.Cat")
    things: Registry[type] = import_object(f"{package}.THINGS")
    assert list(things) == ["cat"]
    assert things["cat"] is cat


def test_components_without_source_are_found(package: str, tmp_path: Path) -> None:
    folder = tmp_path / package
    assert compileall.compile_dir(folder, quiet=1, legacy=True)
    for source in folder.glob("*.py"):
        source.unlink()
    things: Registry[type] = import_object(f"{package}.THINGS")
    assert list(things) == ["cat"]
    assert things["cat"].__name__ == "Cat"


def test_components_in_a_zip_file_are_found(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zipped = f"zipped_{package}"
    with zipfile.ZipFile(tmp_path / "zoo.zip", "w") as archive:
        for source in (tmp_path / package).glob("*.py"):
            archive.writestr(f"{zipped}/{source.name}", source.read_text().replace(package, zipped))
    monkeypatch.syspath_prepend(str(tmp_path / "zoo.zip"))
    things: Registry[type] = import_object(f"{zipped}.THINGS")
    assert list(things) == ["cat"]
    assert modules_of(zipped) == set()
    assert things["cat"].__name__ == "Cat"


@pytest.fixture
def distribute(tmp_path: Path) -> Iterator[Callable[[str, str], None]]:
    """Installs a distribution with an entry point for a thing."""

    def install(name: str, value: str) -> None:
        info = tmp_path / "farm-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Name: farm\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[recgrad.things]\n{name} = {value}\n")
        importlib.invalidate_caches()

    recgrad.registry._entry_points.cache_clear()
    yield install
    recgrad.registry._entry_points.cache_clear()


@pytest.fixture
def with_cow(package: str, tmp_path: Path, distribute: Callable[[str, str], None]) -> Registry[type]:
    """A registry that finds a cow, which another distribution has."""
    (tmp_path / f"farm_{package}.py").write_text("class Cow: ...\n")
    distribute("cow", f"farm_{package}:Cow")
    things: Registry[type] = import_object(f"{package}.THINGS")
    return things


def test_entry_points_of_others_are_loaded_when_they_are_asked_for(
    package: str, with_cow: Registry[type]
) -> None:
    things = with_cow
    assert list(things) == ["cat", "cow"]
    assert f"farm_{package}" not in sys.modules
    assert things["cow"].__name__ == "Cow"
    assert [name for name, _ in things.items()] == ["cat", "cow"]


def test_an_entry_point_may_name_what_registers_itself(
    package: str, tmp_path: Path, distribute: Callable[[str, str], None]
) -> None:
    (tmp_path / f"farm_{package}.py").write_text(
        f"from {package} import THINGS\n@THINGS.register('cow')\nclass Cow: ...\n"
    )
    distribute("cow", f"farm_{package}:Cow")
    things: Registry[type] = import_object(f"{package}.THINGS")
    assert things["cow"].__name__ == "Cow"
    with pytest.raises(ValueError, match="thing 'cow' is registered twice"):
        things.register("cow")(int)


def test_an_entry_point_that_leads_nowhere_says_whose_it_is(
    package: str, distribute: Callable[[str, str], None]
) -> None:
    distribute("cow", "no_such_farm:Cow")
    things: Registry[type] = import_object(f"{package}.THINGS")
    for _ in range(2):
        with pytest.raises(
            RecgradError, match=r"thing 'cow': cannot load no_such_farm:Cow, .* points 'recgrad.things' \(No"
        ):
            things["cow"]


def test_class_paths_are_import_paths_or_names(package: str, with_cow: Registry[type]) -> None:
    assert with_cow.resolve("cow") is with_cow.resolve(f"farm_{package}.Cow")
    with pytest.raises(
        RecgradError, match=r"^class_path 'caw': no thing 'caw'; did you .*; write 'package.Class', or a name"
    ):
        with_cow.resolve("caw")


def test_groups_of_entry_points_are_called_as_english_has_it() -> None:
    assert [Registry(kind, "zoo").group for kind in ("loss", "dense optimizer")] == [
        "recgrad.losses",
        "recgrad.dense_optimizers",
    ]


def test_an_entry_point_with_a_taken_name_raises(
    package: str, distribute: Callable[[str, str], None]
) -> None:
    distribute("cat", "builtins:int")
    with pytest.raises(ValueError, match="thing 'cat' is registered twice"):
        list(import_object(f"{package}.THINGS"))


def test_the_names_read_are_those_that_importing_registers() -> None:
    script = (
        "from recgrad.check.capabilities import REGISTRIES\n"
        "read = {kind: list(registry) for kind, registry in REGISTRIES.items()}\n"
        "assert REGISTRIES['model']._homes and REGISTRIES['feature']._homes, 'nothing was left to import'\n"
        "for kind, registry in REGISTRIES.items():\n"
        "    assert read[kind] == [name for name, _ in registry.items()] == list(registry), kind\n"
    )
    # In a process of its own: other tests have imported all there is.
    subprocess.run([sys.executable, "-c", script], check=True)
