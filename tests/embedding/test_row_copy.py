"""Rows as they were at one moment, copied while updates go on: bit for bit, whoever comes first."""

from __future__ import annotations

import ctypes
import gc
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recgrad.embedding.engine import TablePart
from recgrad.embedding.living import DISTANCE, LAST, NUM_ROWS, LivingSpec
from recgrad.embedding.local import row_copy
from recgrad.embedding.local.engine import Ids, LocalEngine
from recgrad.embedding.local.row_copy import RowCopy
from recgrad.embedding.local.table import Table
from recgrad.embedding.spec import LookupSpec, TableSpec
from recgrad.optim.sparse import Adam

ROWS = 4_000
ZCH = LivingSpec(900, DISTANCE, interval=2, fallback=True)
KINDS: list[dict[str, Any]] = [
    {"storage": "PLAIN"},
    {"storage": "COMPACT"},
    {"storage": "COMPACT", "data_type": "BF16"},
    {"storage": "PLAIN", "data_type": "FP16"},
    {"num_rows": NUM_ROWS, "living": LivingSpec(2_000, LAST, ttl=20)},
    {"num_rows": NUM_ROWS, "living": ZCH},
    {"num_rows": NUM_ROWS, "living": ZCH, "data_type": "BF16"},
]


class Trained:
    """Tables of every storage, which random batches update."""

    def __init__(self, seed: int, dim: int = 4, lazy: bool = True) -> None:
        specs = [
            TableSpec(**{"name": f"t{i}", "num_rows": ROWS, "dim": dim, **kind})
            for i, kind in enumerate(KINDS)
        ]
        lookups = [LookupSpec(f"l{i}", f"k{i}", spec.name) for i, spec in enumerate(specs)]
        self.engine = LocalEngine(specs, lookups, keys=[spec.key for spec in lookups])
        self.names = [spec.name for spec in lookups]
        self.optimizer = Adam(self.engine, lr=0.1, lazy=lazy)
        self.rng = np.random.default_rng(seed)

    def step(self, rows: int = 200) -> None:
        ids = torch.from_numpy(self.rng.integers(0, ROWS, len(KINDS) * rows))
        lengths = torch.ones(len(ids), dtype=torch.int32)
        output = self.engine(Ids(ids, lengths, [rows] * len(KINDS), single=True)).pooled(self.names)
        output.backward(torch.from_numpy(self.rng.normal(size=output.shape).astype(np.float32)))
        self.optimizer.step()

    def parts(self) -> list[TablePart]:
        return [part for table in self.engine.tables.values() for part in table.parts()]

    def begin_copies(self) -> list[Any]:
        return [table.begin_copy() for table in self.engine.tables.values()]


def all_parts(copies: list[Any]) -> list[TablePart]:
    return [part for copy in copies for part in copy()]


def assert_same(found: list[TablePart], expected: list[TablePart]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.first_column == other.first_column
        np.testing.assert_array_equal(one.row_ids, other.row_ids)
        assert one.weights.tobytes() == other.weights.tobytes()
        assert one.states.keys() == other.states.keys()
        for name, state in one.states.items():
            assert state.tobytes() == other.states[name].tobytes(), name


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_copy, "PIECE_BYTES", 2_000)


@pytest.mark.parametrize(
    ("before", "dim", "lazy"), [(0, 4, True), (1, 4, True), (5, 4, True), (5, 4, False), (5, 16, False)]
)
def test_a_copy_has_the_rows_of_its_moment_whatever_is_updated_since(
    before: int, dim: int, lazy: bool
) -> None:
    trained = Trained(before, dim, lazy)
    for _ in range(before):
        trained.step()
    expected, copies = trained.parts(), trained.begin_copies()
    assert all(table.copying is not None for table in trained.engine.tables.values())
    for _ in range(6):  # new rows come too, so that the index of a compact table is doubled
        trained.step(800)
    assert_same(all_parts(copies), expected)
    assert all(table.copying is None for table in trained.engine.tables.values())


@pytest.mark.parametrize(("dim", "lazy"), [(4, True), (24, False)])
def test_updates_while_another_thread_copies(dim: int, lazy: bool) -> None:
    trained = Trained(0, dim, lazy)
    for _ in range(4):
        trained.step(2_000)
    for _ in range(5):
        expected, copies = trained.parts(), trained.begin_copies()
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(all_parts, copies)
            while not found.done():
                trained.step()
        assert_same(found.result(), expected)


def test_other_writers_wait_for_the_copy() -> None:
    trained = Trained(1)
    trained.step()
    expected, copies = trained.parts(), trained.begin_copies()
    for name, table in trained.engine.tables.items():
        rows, states = table.row_states()
        trained.engine.import_table(name, rows, np.full((len(rows), 4), 7.0, np.float32))
        table.import_states(rows, {key: state + 1 for key, state in states.items()})
    assert_same(all_parts(copies), expected)


def test_a_second_copy_begins_where_the_first_has_ended() -> None:
    trained = Trained(2)
    trained.step()
    first, copies = trained.parts(), trained.begin_copies()
    trained.step()
    second, later = trained.parts(), trained.begin_copies()
    trained.step()
    assert_same(all_parts(later), second)
    assert_same(all_parts(copies), first)


def test_a_copy_that_nobody_wants_costs_nothing_more() -> None:
    trained = Trained(3)
    trained.step()
    copies = trained.begin_copies()
    assert all(table.copying is not None for table in trained.engine.tables.values())
    del copies
    gc.collect()
    assert all(table.copying is None for table in trained.engine.tables.values())
    trained.step()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(1, 60), st.integers(1, 400))
def test_rows_that_are_put_aside_between_any_two_pieces(seed: int, slots: int, piece: int) -> None:
    """Against a plain copy: after each piece some slots are kept and then overwritten."""
    rng = np.random.default_rng(seed)
    array = rng.normal(size=(slots + 5, 3)).astype(np.float32)
    expected = array[:slots].copy()
    rows = rng.permutation(1000)[:slots]
    copy = RowCopy({"a": array}, slots, lambda: (rows, np.arange(slots)))
    plain = copy._copy

    def then_write(*args: Any) -> None:
        plain(*args)
        copy._lock.release()  # what an update of another thread would do now
        written = rng.permutation(slots + 5)[: rng.integers(slots + 5)]
        copy.keep(written)
        array[written] = np.nan
        copy._lock.acquire()

    copy._copy = then_write  # type: ignore[method-assign,assignment]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_copy, "PIECE_BYTES", piece)
        found, copies = copy.collect()
    order = np.argsort(rows)
    np.testing.assert_array_equal(found, rows[order])
    assert copies["a"].tobytes() == expected[order].tobytes()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 5000), st.integers(0, 2**63 - 1)), unique=True))
def test_rows_are_sorted_with_their_slots(rows: list[int]) -> None:
    given_rows, slots = np.array(rows, np.int64), np.arange(len(rows), dtype=np.int64)[::-1].copy()
    order = np.argsort(given_rows)
    expected = given_rows[order], slots[order]
    for found, one in zip(row_copy._sorted(given_rows.copy(), slots.copy()), expected, strict=True):
        np.testing.assert_array_equal(found, one)


def test_several_copies_put_rows_aside_at_once() -> None:
    rng = np.random.default_rng(0)
    arrays = [
        {"a": rng.normal(size=(50, width)).astype(np.float32), "b": rng.integers(0, 99, (50, 3), np.uint8)}
        for width in (1, 16, 37)
    ]
    expected = [{name: array.copy() for name, array in own.items()} for own in arrays]
    copies = [RowCopy(own, 50, lambda: (np.arange(50), np.arange(50))) for own in arrays]
    copies[1].collect()
    for _ in range(4):  # some slots are named again, and have one record all the same
        written = [rng.permutation(50)[:20] for _ in arrays]
        row_copy.keep_all(list(zip(copies, written, strict=True)))
        for own, slots in zip(arrays, written, strict=True):
            for array in own.values():
                array[slots] = 0
    for copy, own in zip(copies, expected, strict=True):
        found = copy.collect()[1]
        assert all(found[name].tobytes() == array.tobytes() for name, array in own.items())


@pytest.mark.parametrize(
    ("beside", "idle", "rests"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_the_thread_that_copies_rests_while_steps_go_on(
    beside: bool, idle: bool, rests: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rested: list[float] = []
    monkeypatch.setattr("time.sleep", rested.append)
    if idle:  # as if no update had come for long
        monkeypatch.setattr(row_copy, "STEPS_SECS", 0.0)
    array = np.zeros((9_000, 4), np.float32)
    copy = RowCopy({"a": array}, len(array), lambda: (np.arange(len(array)), np.arange(len(array))))
    copy.collect(beside=beside)
    assert bool(rested) == rests


def test_rows_are_found_while_others_are_written_first() -> None:
    spec = TableSpec("t", 1 << 20, 1, storage="PLAIN")  # of width 1, whose memory NumPy reads as it is
    table = LocalEngine([spec], [LookupSpec("l", "k", "t")], keys=["k"]).tables["t"]
    assert isinstance(table, Table)
    table.write(np.arange(4), np.ones((4, 1), np.float32))
    rows, done = table.lines.stored()[4:], threading.Event()

    def write() -> None:  # as kernels do: without Python's lock
        while not done.is_set():
            for value in (0, 1):
                ctypes.memset(rows.ctypes.data, value, rows.nbytes)

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        try:
            for _ in range(50):
                assert table.touched_rows()[0][:4].tolist() == [0, 1, 2, 3]
        finally:
            done.set()
        writing.result()
