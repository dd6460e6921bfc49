"""Compiled code is kept under all that it is made of: a change anywhere in it compiles again."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numba
import numpy as np
import pytest

from recgrad.kernels import cache, cached_njit, key
from recgrad.kernels.clean import DAY_SECS, KEEP_EACH, UNUSED_DAYS, remove_old

LEAF = "from numba import njit\n@njit\ndef leaf(x):\n    return {factor} * x\n"
MIDDLE = "from numba import njit\nfrom {leaf} import leaf\n@njit\ndef middle(x):\n    return leaf(x) + 1\n"
TOP = """
from recgrad.kernels import cached_njit
import {middle} as lib
from {constants} import SCALE

@cached_njit()
def top(x):
    return SCALE * lib.middle(x)
"""


class Modules:
    """Files of a package of one's own, imported again after each change."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = {part: f"{part}_{folder.name}" for part in ("leaf", "middle", "constants", "top")}
        self.write("leaf", LEAF.format(factor=2))
        self.write("middle", MIDDLE.format(**self.names))
        self.write("constants", "SCALE = 3\n")
        self.write("top", TOP.format(**self.names))

    def write(self, part: str, text: str) -> None:
        (self.folder / f"{self.names[part]}.py").write_text(text)

    def load(self) -> ModuleType:
        for name in self.names.values():
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        key._file_hash.cache_clear()
        return importlib.import_module(self.names["top"])

    def key(self) -> str:
        return key.kernel_key(self.load().top.py_func, {})


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Modules]:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # an edit within a second has the same time
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Modules(tmp_path)
    yield made
    for name in made.names.values():
        sys.modules.pop(name, None)


def change_leaf(modules: Modules) -> None:
    modules.write("leaf", LEAF.format(factor=5))


def change_constant(modules: Modules) -> None:
    modules.write("constants", "SCALE = 4\n")


def change_options(modules: Modules) -> None:
    modules.write("middle", MIDDLE.format(**modules.names).replace("@njit", "@njit(fastmath=True)"))


@pytest.mark.parametrize("change", [change_leaf, change_constant, change_options])
def test_the_key_follows_what_a_kernel_reaches_through_modules(
    modules: Modules, change: Callable[[Modules], None]
) -> None:
    before = modules.key()
    assert modules.key() == before
    change(modules)
    assert modules.key() != before


def test_the_key_does_not_follow_what_is_not_reached(modules: Modules) -> None:
    before = modules.key()
    (modules.folder / "stranger.py").write_text("x = 1\n")
    modules.write("constants", "SCALE = 3\nOTHER = 4\n")
    assert modules.key() == before


@pytest.mark.parametrize("what", ["recgrad", "numba", "llvmlite"])
def test_the_key_has_the_versions_in_it(modules: Modules, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    before = modules.key()
    if what == "recgrad":
        monkeypatch.setattr(key, "__version__", "99.0")
    else:
        monkeypatch.setattr(getattr(key, what), "__version__", "99.0")
    key._compiler.cache_clear()
    try:
        assert modules.key() != before
    finally:
        key._compiler.cache_clear()


def test_options_given_by_a_decorator_of_another_file_count() -> None:
    """As `sparse_rule` gives them, which no rule calls."""
    plain, fast = (numba.njit(fastmath=fast)(_double) for fast in (False, {"nsz", "contract"}))
    keys = [key.kernel_key(_calling(rule), {}) for rule in (plain, fast, fast)]
    assert keys[0] != keys[1] == keys[2]


def _double(x: float) -> float:
    return 2 * x


def _calling(rule: Any) -> Any:
    def kernel(x: float) -> float:
        return rule(x)

    return kernel


def test_arrays_and_nested_constants_count() -> None:
    keys = {
        key.kernel_key(_calling(value), {})
        for value in (np.arange(3), np.arange(4), (1, (2.0, "a")), (1, (2.0, "b")), {"a": 1}, {1, 2})
    }
    assert len(keys) == 6


PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import importlib
top = importlib.import_module(sys.argv[2]).top
print(top(2.0), sum(top.stats.cache_hits.values()))
"""


def run(modules: Modules) -> str:
    command = [sys.executable, "-B", "-c", PROGRAM, str(modules.folder), modules.names["top"]]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.strip()


def test_another_process_runs_what_is_kept_until_a_module_that_it_imports_changes(modules: Modules) -> None:
    assert run(modules) == "15.0 0"
    assert run(modules) == "15.0 1"
    change_leaf(modules)
    assert run(modules) == "33.0 0"


def test_a_damaged_entry_is_compiled_again(modules: Modules) -> None:
    assert modules.load().top(2.0) == 15.0
    (entry,) = (modules.folder / "cache/recgrad/kernels").glob("*.nbc")
    entry.write_bytes(b"nothing of use")
    again = modules.load().top
    assert again(2.0) == 15.0
    assert not again.stats.cache_hits
    assert len(entry.read_bytes()) > 100


def test_without_a_folder_to_write_to_kernels_run(
    modules: Modules, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (modules.folder / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(modules.folder / "file"))
    assert modules.load().top(2.0) == 15.0
    assert "set XDG_CACHE_HOME" in caplog.text


def test_where_numba_is_another_inside_kernels_run_and_are_not_kept(
    modules: Modules, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "_internals", lambda: None)
    assert modules.load().top(2.0) == 15.0
    assert not cache.is_kept()
    made = cache.cached_cfunc(numba.types.float64(numba.types.float64), name="double")(_double)
    assert made.ctypes(2.0) == 4.0
    assert not (modules.folder / "cache").exists()


def test_a_change_of_numbas_inside_is_noticed_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from numba.core.compiler import CompileResult

    monkeypatch.delattr(CompileResult, "_rebuild")
    cache._internals.cache_clear()
    try:
        assert cache._internals() is None
        assert cache._internals() is None
    finally:
        cache._internals.cache_clear()
    assert caplog.text.count("compiled kernels cannot be kept") == 1


def test_two_kernels_of_one_maker_do_not_meet(modules: Modules) -> None:
    """As two rules of an update, loaded from what other processes have kept."""
    signature = numba.types.float64(numba.types.float64)
    for _ in range(2):
        made = [
            cache.cached_cfunc(signature, name="same")(_calling(numba.njit(rule)))
            for rule in (_double, _half)
        ]
        assert [kernel.ctypes(3.0) for kernel in made] == [6.0, 1.5]
    assert all(kernel.cache_hits for kernel in made)


def _half(x: float) -> float:
    return x / 2


def test_no_kernel_of_the_package_is_kept_by_numba_itself() -> None:
    """Its cache does not notice changes of other files."""
    package = Path(cache.__file__).parents[1]
    found = [path for path in package.rglob("*.py") if "cache=True" in path.read_text()]
    assert found == []


def test_the_kernels_of_rules_have_their_helpers_in_their_keys() -> None:
    from recgrad.embedding.local import lookup, rows
    from recgrad.embedding.local.update import update_function
    from recgrad.kernels import simd
    from recgrad.optim.sparse import rowwise
    from recgrad.optim.sparse.lamb import lamb

    reached = key._Reached()
    reached.add_function(update_function(lamb))
    for module in (rowwise, rows, simd, sys.modules[lamb.py_func.__module__]):
        assert key._file_hash(module.__file__) in reached.parts, module
    assert key._file_hash(lookup.__file__) not in reached.parts  # lookups are compiled apart


def entry(folder: Path, name: str, days: float) -> Path:
    path = folder / name
    path.write_bytes(b"")
    then = time.time() - days * DAY_SECS
    os.utime(path, (then, then))
    return path


def test_what_nobody_uses_is_removed(tmp_path: Path) -> None:
    old = [entry(tmp_path, "a.f-1.nbc", UNUSED_DAYS + 1), entry(tmp_path, ".x.tmp", 2)]
    kept = [entry(tmp_path, "a.f-2.nbc", UNUSED_DAYS - 1), entry(tmp_path, ".y.tmp", 0.1)]
    folder = tmp_path / "0123456789abcdef"  # as earlier versions kept them
    folder.mkdir()
    entry(folder, "kernel.py", UNUSED_DAYS + 1)
    os.utime(folder, (0, 0))
    remove_old(tmp_path, ".nbc")
    assert not any(path.exists() for path in [*old, folder])
    assert all(path.exists() for path in kept)
    remove_old(tmp_path / "gone", ".nbc")


def test_of_a_function_with_many_sources_the_last_ones_stay(tmp_path: Path) -> None:
    many = [entry(tmp_path, f"a.f-{n}.nbc", 2 + n / 10) for n in range(KEEP_EACH + 5)]
    new = [entry(tmp_path, f"a.f-new{n}.nbc", 0.5) for n in range(5)]
    other = entry(tmp_path, "a.g-1.nbc", 20)
    remove_old(tmp_path, ".nbc")
    assert [path.exists() for path in many] == [True] * KEEP_EACH + [False] * 5
    assert all(path.exists() for path in [*new, other])


def test_an_entry_that_is_used_is_marked_so(modules: Modules) -> None:
    modules.load().top(2.0)
    (kept,) = (modules.folder / "cache/recgrad/kernels").glob("*.nbc")
    os.utime(kept, (0, time.time() - 20 * DAY_SECS))
    again = modules.load().top
    assert again(2.0) == 15.0
    assert again.stats.cache_hits
    assert time.time() - kept.stat().st_mtime < DAY_SECS


def test_a_full_disk_does_not_stop_a_run(modules: Modules, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache.tempfile, "mkstemp", full)
    assert modules.load().top(2.0) == 15.0


def test_types_have_entries_of_their_own(modules: Modules) -> None:
    top = modules.load().top
    assert (top(2), top(2.0)) == (15, 15.0)
    assert len(list((modules.folder / "cache/recgrad/kernels").glob("*.nbc"))) == 2
    assert cached_njit()(_double)(4) == 8
